"""Coder and Analyst without a language model: their replies, and that the figures in them are correct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.views import AnalystView
from autoqec.errors import ContractError
from autoqec.ideators.analyst import analyse
from autoqec.ideators.coder import code
from autoqec.store.files import load_yaml
from tests.support import rounds
from tests.support.role_views import analyst_view, coder_view


def view(tmp_path: Path, **more: Any) -> AnalystView:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(rounds.metrics(1, **more).dump()), encoding="utf-8")
    return analyst_view(path)


def counts(fixed: int, broken: int, shots: int = 20_000, plain: int = 300) -> dict[str, Any]:
    return {
        "val_shots": shots,
        "val_errors_plain": plain,
        "val_errors_predecoder": plain - fixed + broken,
        "val_fixed": fixed,
        "val_broken": broken,
        "delta_ler": (fixed - broken) / shots,
    }


def test_coder_writes_the_config_file_and_nothing_else() -> None:
    response = code(coder_view({"type": "mlp", "mlp": {}}))
    (edit,) = response.edits
    assert edit.path == "predecoder.yaml"
    assert load_yaml(edit.text, location="edit") == response.dsl_config == rounds.CONFIG


def test_pure_composition_is_not_edited() -> None:
    response = code(coder_view(rounds.CONFIG, compose_mode="pure"))
    assert response.edits == ()


def test_invalid_config_is_refused() -> None:
    with pytest.raises(ContractError, match="hiden"):
        code(coder_view({"type": "mlp", "mlp": {"hiden": 3}}))


def test_clear_gain_is_nominated_with_its_figures(tmp_path: Path) -> None:
    response = analyse(view(tmp_path, **counts(150, 50)))
    assert response.verdict == "candidate"
    for figure in ("20000 validation shots", "failed 300 times", "150 shots fixed", "50 broken", "+5.000e-03", "33.3%"):
        assert figure in response.analysis, response.analysis
    assert "the verifier decides" in response.analysis


def test_null_result_states_the_detectable_gain(tmp_path: Path) -> None:
    response = analyse(view(tmp_path, **counts(60, 55)))
    assert response.verdict == "ignore"
    assert "20000 shots detect a reduction of about 20%" in response.analysis


def test_significant_loss_is_reported(tmp_path: Path) -> None:
    response = analyse(view(tmp_path, **counts(20, 90)))
    assert response.verdict == "ignore" and "the predecoder is worse" in response.analysis


def test_failed_round_is_ignored_with_its_reason(tmp_path: Path) -> None:
    failed = {"status": "killed_by_safety", "status_reason": "memory 9.1 GB\nof 8", "delta_ler": None}
    response = analyse(view(tmp_path, **failed, checkpoint_path=None))
    assert response.verdict == "ignore" and "memory 9.1 GB of 8" in response.analysis


def test_without_counts_nothing_is_nominated(tmp_path: Path) -> None:
    response = analyse(view(tmp_path, val_shots=None, delta_ler=0.5))
    assert response.verdict == "ignore" and "no paired counts" in response.analysis


def test_parent_is_named_as_guidance(tmp_path: Path) -> None:
    response = analyse(view(tmp_path, **counts(150, 50), delta_vs_parent=0.001))
    assert "+1.000e-03 per shot (no interval)" in response.analysis
