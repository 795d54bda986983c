"""A run with the scripted expert: screens, a change of code, one repair, notes; then a replay to the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.contracts.round import Trial
from autoqec.extensions.language_models.roles.notebook import current_lessons
from autoqec.store import jsonl
from autoqec.store.history import History
from autoqec.store.jsonl import read_contracts
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace, made_workspace

SAME = (
    "dsl_config", "hypothesis", "status", "delta_ler", "final_loss", "n_params", "verdict", "verify_verdict",
    "delta_vs_baseline_holdout", "ideator_source",
)  # fmt: skip


def finished_run(workspace: Workspace, rounds: int, *more: str) -> RunLayout:
    secret = workspace.root.parent / "secret"
    secret.write_bytes(b"a secret that only tests may know")
    small = ("--profile", "smoke", "--scale", "0.1")  # no assertion depends on how good the networks are
    options = (*small, "--ideator", "llm", "--model", "scripted:expert", "--open-modules")
    result = workspace.autoqec(
        "run", "env.yaml", *options, "--rounds", str(rounds), "--secret-file", str(secret), *more, timeout=900 * rounds
    )
    assert result.code == 0, result.err
    (run_dir,) = (workspace.root / "runs").glob("[0-9]*")
    return RunLayout(workspace.root, run_dir.name)


@pytest.mark.parametrize("rounds", [3, pytest.param(10, marks=pytest.mark.long)])
def test_expert_screens_repairs_and_is_replayed(tmp_path: Path, rounds: int) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    first.mkdir(), second.mkdir()
    workspace = made_workspace(first)
    run = finished_run(workspace, rounds, "--memory", "memory.jsonl")
    rows = History(run).rows()
    assert [row.status for row in rows] == ["ok"] * rounds
    assert all(row.ideator_source == "llm scripted:expert" for row in rows), "no round was left to the search"

    trials = read_contracts(run.trials, Trial)
    screens = [trial for trial in trials if trial.kind == "screen"]
    assert [(trial.round, trial.status) for trial in screens] == [(2, "ok"), (2, "ok")]
    checks = [(trial.round, trial.status) for trial in trials if trial.kind == "check"]
    after = [(number, "ok") for number in range(3, rounds + 1)]
    assert checks == [(1, "ok"), (2, "ok"), (3, "compile_error"), *after], "one repair, before the round was spent"

    coded, coded_again = rows[2], rows[7] if rounds > 7 else None
    if coded_again is not None:
        assert "tanh" in workspace.git("show", f"{coded_again.branch}:autoqec/decoders/modules/custom_fn.py")
    assert coded.dsl_config is not None and coded.dsl_config["head"] == "custom"
    assert "self.norm(h)" in workspace.git("show", f"{coded.branch}:autoqec/decoders/modules/custom_fn.py")
    turns = list(jsonl.read(run.round(3).transcript))
    assert {turn["role"] for turn in turns} == {"ideator", "coder", "analyst"}
    assert any("noted as lesson" in str(turn.get("tool_results")) for turn in turns)
    lessons = current_lessons(run.notebook)
    assert len(lessons) == rounds - 2
    notes = workspace.autoqec("memory", "memory.jsonl", "--env", "env.yaml", "--json").objects[-1]["notes"]
    assert lessons[-1].text in notes[0], "carried to the next run"

    replayed = finished_run(made_workspace(second), rounds, "--cassette", str(run.cassette), "--memory", "memory.jsonl")
    again = History(replayed).rows()
    assert [[getattr(row, name) for name in SAME] for row in again] == [
        [getattr(row, name) for name in SAME] for row in rows
    ]
    assert [trial.key for trial in read_contracts(replayed.trials, Trial)] == [trial.key for trial in trials]
    assert [lesson.model_copy(update={"attempt": None}) for lesson in current_lessons(replayed.notebook)] == [
        lesson.model_copy(update={"attempt": None}) for lesson in lessons
    ], "but for the ids of the attempts that wrote them"
