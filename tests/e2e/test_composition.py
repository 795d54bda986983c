"""Composition of two verified rounds: the verifier compares the child with both on one draw; a replay agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import flatten, unflatten
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.verdict import VerifyReport
from autoqec.contracts.views import AnalystView, IdeatorView
from autoqec.ideators import space
from autoqec.ideators.analyst import analyse
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.run import Roles
from autoqec.verification import decision
from tests.conftest import Workspace, made_workspace
from tests.support.starts import resume_run, start_run

# Changes in different lines of predecoder.yaml, so that git can merge them.
CHANGES: tuple[dict[str, Any], ...] = ({"mlp.hidden": 128}, {"training.batch_size": 1024})


def ideate(view: IdeatorView) -> IdeatorResponse:
    rows = view.history
    pure = len(rows) >= 2
    changes = CHANGES[min(len(rows), 1)]
    return IdeatorResponse.model_validate(
        {
            "hypothesis": f"net {len(rows) + 1}",
            "slug": "net",
            "fork_from": tuple(row["branch"] for row in rows[:2]) if pure else "baseline",
            "compose_mode": "pure" if pure else None,
            "proposal": unflatten(flatten(space.TEMPLATES[0].config) | changes),
        }
    )


def nominate(view: AnalystView) -> Any:
    return analyse(view).model_copy(update={"verdict": "candidate"})


@pytest.mark.long
def test_composition_is_compared_with_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the verdict of the parents, which so few shots cannot verify; test what follows from a verdict."""
    workspace: Workspace = made_workspace(tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(b"a fixed secret, used only in tests")
    roles = Roles(ideate, analyst=nominate)
    with (
        monkeypatch.context() as verified,
        start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, secret_file=secret, roles=roles) as run,
    ):
        verified.setattr(decision, "decide", lambda *evidence: ("VERIFIED", ["replaced by the test"]))
        run_rounds(run, 2)
    history = run.layout.history
    with resume_run(run.info.run_id, workspace.root, roles=roles) as run:
        run_rounds(run, 3)
    row = json.loads(history.read_text(encoding="utf-8").splitlines()[-1])
    round_layout = run.layout.round(3)
    report = VerifyReport.read(json.loads(round_layout.report_json.read_bytes()), location="report")
    found = report.composition
    assert found is not None, report.not_tested
    assert [parent.round for parent in found.parents] == [1, 2]
    for parent in found.parents:
        parent_report = json.loads(run.layout.round(parent.round).report_json.read_bytes())
        assert parent.artifact_sha256 == parent_report["artifact_sha256"]
    assert row["composition_verdict"] == found.verdict
    replayed = workspace.autoqec("verify", str(round_layout.dir), "--replay", "--json")
    assert replayed.code == 0, replayed.out + replayed.err
    (run.layout.round(1).checkpoint).unlink()
    without = workspace.autoqec("verify", str(round_layout.dir), "--replay", "--json")
    assert without.code == 1 and without.objects[-1]["differences"][0].startswith("composition counts were")
