"""Predictions of other decoders: reading a span, damaged files, and names in an env."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.recorded import shots as shots_module
from autoqec.extensions.recorded.decoding import PredictedSpan, baseline_names, check_predictions
from autoqec.extensions.recorded.env import preflight
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.qec.env_summary import summarize_env
from autoqec.store.files import load_env, parse_env
from tests.support.recorded import plain_directory, write_predictions, write_recorded_env


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = plain_directory(tmp_path / "data", 3500)
    write_predictions(directory, "other", 7)
    return directory


@pytest.mark.parametrize("span", [(0, 7000), (3100, 4100), (3500, 5000), (4200, 7000)])
@pytest.mark.parametrize("part", [48, 900])
def test_errors_of_a_span_are_those_of_its_shots(
    data: Path, monkeypatch: pytest.MonkeyPatch, span: tuple[int, int], part: int
) -> None:
    monkeypatch.setattr(shots_module, "CHUNK", 64)
    recorded = RecordedShots.open(data)
    predicted = PredictedSpan(recorded, (3500, 3500), span, ["other"])
    parts = recorded.span((3500, 3500), span, 100, part)
    wrong = np.concatenate([predicted.wrong_shots(shots.observables)["recorded:other"] for shots in parts])
    assert (wrong == (np.arange(*span) % 3500 % 7 == 0)).all()


def test_a_span_holds_few_predictions_at_a_time(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that end before the span are not opened, and of the others no more is read than is needed."""
    monkeypatch.setattr(shots_module, "CHUNK", 64)
    recorded, read = RecordedShots.open(data), list[int]()
    read_chunks = shots_module.read_chunks

    def noted(path: Path, n_bits: int, kind: str):  # type: ignore[no-untyped-def]
        for chunk in read_chunks(path, n_bits, kind):
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(shots_module, "read_chunks", noted)
    predicted = PredictedSpan(recorded, (3500, 3500), (3600, 7000), ["other"])
    predicted.wrong_shots(np.zeros((10, 1), bool))
    assert sum(read) == 128


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(5))


def compress(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def set_padding(path: Path) -> None:
    path.write_bytes(bytes([0x80]) + path.read_bytes()[1:])


DAMAGE = [truncate, lengthen, compress, set_padding]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("index", [0, 1])
def test_damaged_predictions_are_refused(data: Path, damage: Callable[[Path], None], index: int) -> None:
    recorded = RecordedShots.open(data)
    check_predictions(recorded, (3500, 3500))
    damage(data / f"other{index}.b8")
    with pytest.raises(UsageError) as refused:
        check_predictions(recorded, (3500, 3500))
    assert str(data / f"other{index}.b8") in str(refused.value.location) and refused.value.hint
    if damage in (truncate, lengthen):
        assert "predictions of other, but its block has 3500 shots" in str(refused.value)


def test_damaged_predictions_are_refused_at_the_start_of_a_run_if_they_are_baselines(data: Path) -> None:
    truncate(data / "other1.b8")
    damaged = write_recorded_env(data.parent, others=("recorded:other",))  # hashes are those of the damaged file
    with pytest.raises(UsageError, match="holds 3495 predictions of other, but its block has 3500 shots"):
        preflight(load_env(damaged)[0], data)
    unnamed = write_recorded_env(data.parent)
    preflight(load_env(unnamed)[0], data)  # envs that were written before start as they did


def test_an_env_names_only_predictions_that_every_block_has(data: Path) -> None:
    env_file = write_recorded_env(data.parent, others=("recorded:other",))
    env, text = load_env(env_file)
    assert env.predicted_by == ("other",) and parse_env(text, location="env") == env
    assert "recorded:other" not in summarize_env(env, 1000).rates
    with pytest.raises(UsageError, match="not all shots have its predictions; known: recorded:other"):
        load_env(write_recorded_env(data.parent, others=("recorded:another",)))
    with pytest.raises(UsageError, match="not all shots have its predictions"):
        parse_env(text.replace("recorded:other", "recorded:another"), location="env")
    layout = yaml.safe_load((data / "recorded.yaml").read_text())
    del layout["blocks"][1]["predictions"]
    (data / "recorded.yaml").write_text(yaml.safe_dump(layout))
    assert baseline_names(RecordedShots.open(data)) == ()
    with pytest.raises(UsageError, match="known: none"):
        load_env(write_recorded_env(data.parent, others=("recorded:other",)))


def test_predictions_need_recorded_shots(data: Path) -> None:
    spec = load_env(write_recorded_env(data.parent))[0].dump()
    spec |= {"code": {"kind": "dem_file", "path": "a.dem"}, "baselines": ["mwpm", "recorded:other"]}
    with pytest.raises(ValueError, match="known: none"):
        EnvSpec.model_validate(spec)


def test_names_that_an_env_cannot_hold_are_refused(data: Path) -> None:
    layout = yaml.safe_load((data / "recorded.yaml").read_text())
    for block in layout["blocks"]:
        block["predictions"] = {"a b": block["predictions"]["other"]}
    (data / "recorded.yaml").write_text(yaml.safe_dump(layout))
    with pytest.raises(UsageError, match="predictions of 'a b'") as refused:
        baseline_names(RecordedShots.open(data))
    assert "other0.b8" in str(refused.value.location) and "rename" in str(refused.value.hint)
