"""Files of a round directory: valid files are read, damaged ones are skipped or reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.store.files import dump_config
from autoqec.store.layout import RoundLayout
from autoqec.store.round_files import RoundFiles, load_contract, load_round, read_contract
from tests.support import rounds


@pytest.fixture
def layout(tmp_path: Path) -> RoundLayout:
    found = RoundLayout(tmp_path / "round_1", 1)
    found.dir.mkdir()
    found.metrics.write_text(json.dumps(rounds.metrics(1).dump()), encoding="utf-8")
    found.report_json.write_text(json.dumps(rounds.report(1).dump()), encoding="utf-8")
    found.pointer.write_text(json.dumps(rounds.pointer(1).dump()), encoding="utf-8")
    found.config.write_text(dump_config(rounds.CONFIG), encoding="utf-8")
    return found


def test_every_file_is_read_once_and_missing_files_are_none(layout: RoundLayout) -> None:
    found = load_round(layout)
    assert found == RoundFiles(rounds.metrics(1), rounds.report(1), rounds.CONFIG, None, rounds.pointer(1))
    assert found.sandbox is None
    assert load_round(RoundLayout(layout.dir.with_name("round_2"), 2)) == RoundFiles()


@pytest.mark.parametrize("damage", ["{", "[]", '{"status": "ok"}', "", "\ufeff{}"])
def test_damaged_file_is_skipped_or_reported(layout: RoundLayout, damage: str) -> None:
    layout.metrics.write_text(damage, encoding="utf-8")
    assert load_round(layout).metrics is None and load_round(layout).report is not None
    assert load_contract(layout.metrics, RoundMetrics) is None
    with pytest.raises(ContractError) as caught:
        read_contract(layout.metrics, RoundMetrics)
    assert str(layout.metrics) in str(caught.value)


def test_unreadable_file_is_skipped(layout: RoundLayout) -> None:
    layout.report_json.unlink()
    layout.report_json.mkdir()
    assert load_contract(layout.report_json, VerifyReport) is None
