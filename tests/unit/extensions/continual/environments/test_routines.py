"""RoundRoutine: promoted designs run once and are scored by their verified gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import UsageError
from autoqec.extensions.continual.design_rounds import WorkspaceRounds
from autoqec.extensions.continual.environments import HallOfFame
from autoqec.extensions.continual.environments.datasets import build_dataset, parse_dataset_config
from autoqec.extensions.continual.environments.design import EnvFeatures, PredecoderDraft
from autoqec.extensions.continual.environments.routines import RoundRoutine, loss_of, verified_task_info
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace
from tests.support import rounds
from tests.support.envs import surface

ENV = surface(3, 0.01)
SMALL = {"type": "mlp", "mlp.hidden": 64, "mlp.depth": 1, "training.finetune_share": 0.0, "training.batch_size": 2048}


def draft(hidden: int) -> PredecoderDraft:
    return PredecoderDraft(EnvFeatures.of(ENV), {"type": "mlp", "mlp.hidden": hidden})


def row(number: int, **more: Any) -> dict[str, Any]:
    val = {"val_shots": 4000, "val_errors_plain": 120, "val_errors_predecoder": 60, "val_fixed": 70, "val_broken": 10}
    return rounds.row(number, **val, **more).dump()


def test_only_the_best_designs_are_promoted_once_each() -> None:
    losses, ran = {64: -0.1, 96: -0.05, 128: -0.3, 192: float("inf")}, list[dict[str, Any]]()

    def cheap(one: PredecoderDraft) -> tuple[float, dict[str, Any]]:
        return losses[one.choices["mlp.hidden"]], {"fidelity": "screen"}

    def real(config: dict[str, Any]) -> dict[str, Any]:
        ran.append(config)
        return row(1, verify_verdict="VERIFIED", relative_holdout=0.2, relative_holdout_low=0.1)

    routine = RoundRoutine(ENV, cheap, real, HallOfFame(1))
    found = [routine(draft(hidden)) for hidden in (64, 96, 128, 192, 128)]
    assert [config["mlp"]["hidden"] for config in ran] == [64, 128]
    assert [info["fidelity"] for _, info in found] == ["round", "screen", "round", "screen", "round"]
    assert found[0][0] == found[4][0] == pytest.approx(-0.1), "the lower bound of the verifier, not of the screen"


@pytest.mark.parametrize("verdict", ["SUSPICIOUS", "FAILED", None])
def test_unverified_round_has_no_gain(verdict: str | None) -> None:
    info = verified_task_info(row(1, verify_verdict=verdict))
    assert info["relative"] > 0.4 and loss_of(info) == 0.0


def test_failed_round_is_a_failed_evaluation() -> None:
    failed = rounds.row(1, status="train_error", status_reason="NaN").dump()
    assert loss_of(verified_task_info(failed)) == float("inf")


def test_without_a_repository_it_is_refused(tmp_path: Path) -> None:
    text = "autoqec/envs/builtin/smoke.yaml"
    config = parse_dataset_config({"kind": "design", "routine": "round", "tasks": [{"env": text}]})
    with pytest.raises(UsageError, match=r"autoqec init workspace"):
        build_dataset(config)


def test_promoted_design_becomes_a_real_round(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A promoted design is screened, run and verified; its row is in the history of the run."""
    monkeypatch.chdir(workspace.root)
    screen = {"train_shots": 2048, "finetune_shots": 0, "val_shots": 2000}
    data = {"kind": "design", "routine": "round", "screen": screen, "n_proposals": 1, "tasks": [{"env": "env.yaml"}]}
    notes: list[str] = []
    with WorkspaceRounds(notes.append) as real:
        (env,) = build_dataset(parse_dataset_config(data).resolved(workspace.root), round_runner=real).get_dataset()
        env.reset()
        _, feedback, done, info = env.step(json.dumps(SMALL))
    (run_dir,) = (workspace.root / "runs").glob("[0-9]*")
    (found,) = History(RunLayout(workspace.root, run_dir.name)).rows()
    assert done and info["fidelity"] == "round" and found.status == "ok" and notes[0].endswith(run_dir.name)
    assert found.dsl_config is not None and found.dsl_config["mlp"]["hidden"] == 64
    assert feedback["correct"] == (found.verify_verdict == "VERIFIED")
    assert workspace.git("rev-parse", "--verify", str(found.branch))
    candidates = json.loads((run_dir / "candidate_pareto.json").read_text(encoding="utf-8"))
    unverified = found.verdict == "candidate" and found.verify_verdict != "VERIFIED"
    assert [row["round"] for row in candidates] == ([1] if unverified else [])
