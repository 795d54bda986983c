"""RunnerConfig and RoundMetrics: fields that require each other."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from autoqec.contracts.round import RoundMetrics, RoundStatus, RunnerConfig, canonical_fork
from autoqec.errors import ContractError


@pytest.mark.parametrize("status", [status for status in get_args(RoundStatus) if status != "ok"])
def test_failure_needs_a_reason(status: str) -> None:
    with pytest.raises(ValidationError, match="status_reason"):
        RoundMetrics.model_validate({"status": status})
    metrics = RoundMetrics.model_validate({"status": status, "status_reason": "the figure that broke the limit"})
    assert metrics.dump()["checkpoint_path"] is None


def test_ok_metrics_need_their_figures() -> None:
    with pytest.raises(ValidationError, match="delta_ler"):
        RoundMetrics(status="ok")
    RoundMetrics(status="ok", delta_ler=0.0, checkpoint_path="/x/checkpoint.pt")


def test_unknown_keys_and_nan_are_refused() -> None:
    with pytest.raises(ValidationError):
        RoundMetrics.model_validate({"status": "train_error", "status_reason": "x", "sandbox": "none"})
    with pytest.raises(ValidationError):
        RoundMetrics(status="train_error", status_reason="x", final_loss=float("nan"))


def test_readers_keep_keys_of_later_versions() -> None:
    metrics = RoundMetrics.read({"status": "train_error", "status_reason": "x", "from_the_future": [1]})
    assert metrics.dump()["from_the_future"] == [1]
    with pytest.raises(ContractError, match=r"metrics.json: field `status`"):
        RoundMetrics.read({"status": "fine"}, location="metrics.json")


def test_round_on_a_branch_has_its_identity() -> None:
    base = {"env_yaml": "x", "predecoder_config": {}, "round_dir": "/r"}
    with pytest.raises(ValidationError, match="round_attempt_id"):
        RunnerConfig.model_validate({**base, "branch": "exp/a/01-b"})
    with pytest.raises(ValidationError, match="compose_mode"):
        RunnerConfig.model_validate({**base, "fork_from": ["a", "b"]})
    RunnerConfig.model_validate({**base, "fork_from": ["a", "b"], "compose_mode": "pure"})


def test_parents_have_one_form() -> None:
    assert canonical_fork(("b", "a")) == canonical_fork(("a", "b")) == "a|b"
    assert canonical_fork("a") == "a"
