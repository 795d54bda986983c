"""Trials: code that does not build is repaired before a round is spent; screens are recorded, charged and replayed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.events import Event
from autoqec.contracts.round import Trial
from autoqec.contracts.views import CoderView
from autoqec.errors import StorageError
from autoqec.extensions.language_models import trials as trials_module
from autoqec.extensions.language_models.clients import deadline
from autoqec.extensions.language_models.clients.ledger import Ledger
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.llm_roles import RunTools
from autoqec.extensions.language_models.roles.coder import LlmCoder
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.ideators.proposal_checks import find_equivalent_round
from autoqec.orchestrator.editable_modules import read_modules
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Roles, Run
from autoqec.runner import trial as runner_trial
from autoqec.store import jsonl
from autoqec.store.jsonl import read_contracts
from tests.conftest import made_workspace
from tests.support import rounds
from tests.support.research import FakeResearch
from tests.support.role_views import ideator_view
from tests.support.rounds import row
from tests.support.starts import start_run

MLP = PredecoderDSL.model_validate({"type": "mlp", "mlp": {"hidden": 16, "depth": 1}}).config()
CUSTOM = {**MLP, "head": "custom"}
HEAD = """from torch import nn


class Head(nn.Module):
    def __init__(self, hidden, n_outputs):
        super().__init__()
        self.out = nn.Linear(hidden, n_outputs)

    def forward(self, h):
        return self.out(h){more}
"""
GOOD, BAD = HEAD.format(more=""), HEAD.format(more="[..., :1]")


def coded(text: str) -> dict[str, Any]:
    return {"dsl_config": CUSTOM, "edits": [{"path": "custom_fn.py", "text": text}], "commit_message": "a head"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Open a run whose first round has begun."""
    place = tmp_path_factory.mktemp("trials")
    root, secret = made_workspace(place).root, place / "secret"
    secret.write_bytes(b"a secret that only tests may know")
    roles = Roles(search("tpe"))
    with start_run(root / "env.yaml", root, "smoke", 1, "llm", secret_file=secret, roles=roles) as run:
        run.memory.history.append_attempt(rounds.begun(1))
        yield run


@pytest.fixture
def run(opened: Run) -> Iterator[Run]:
    """Return the run, without the trials of other tests."""
    yield opened
    opened.layout.trials.unlink(missing_ok=True)


def trials_of(run: Run, recorded: Path | None = None) -> RunTools:
    begun = rounds.begun(1)
    return RunTools(run, lambda: begun, recorded, Ledger(), True)


def task(run: Run, **more: Any) -> CoderView:
    modules = read_modules(run.repo, run.info.baseline_sha)
    return CoderView(hypothesis="a head", slug="head", proposal=CUSTOM, modules=modules, **more)


def coder(run: Run, lm: ScriptedLM, events: list[Event]) -> LlmCoder:
    return LlmCoder(lm, trials_of(run), on_event=events.append)


def test_code_that_does_not_build_is_repaired_with_the_traceback(run: Run) -> None:
    lm, events = ScriptedLM([coded(BAD), coded(GOOD)]), list[Event]()
    response = coder(run, lm, events)(task(run))
    assert response is not None and response.edits[-1].text == GOOD
    shown = str(lm.requests[1].messages[-1].content)
    assert "end of the traceback" in shown and "child.py" in shown and "compile_error" in shown
    assert "[..., :1]" in shown, "its own answer"
    assert str(run.layout.root) not in shown and "[..., :1]" not in str(lm.requests[0].messages[-1].content)
    assert [event.kind for event in events if event.kind == "lm_retry"] == ["lm_retry"]
    first, second = read_contracts(run.layout.trials, Trial)
    assert (first.status, second.status, second.kind) == ("compile_error", "ok", "check")
    assert second.n_params and second.flops_per_syndrome and second.train_shots, "compiled, one step, cost known"
    assert not run.layout.round(1).trial_dir.exists()


def test_after_two_repairs_the_code_is_given_up(run: Run) -> None:
    lm = ScriptedLM([coded(BAD + "\n" * number) for number in range(1, 5)])
    assert coder(run, lm, [])(task(run)) is None
    assert len(lm.requests) == 3 and len(read_contracts(run.layout.trials, Trial)) == 3
    last = str(lm.requests[2].messages[-1].content)
    assert last.count("your last answer") == 4, "both earlier answers, each with its reason"


def test_duplicates_are_found_by_config_and_code() -> None:
    summary = ideator_view([row(3, dsl_config=CUSTOM, branch="exp/r/03-x").dump()]).history[0]
    codes = {"exp/r/03-x": "code A"}

    def duplicate(code: str) -> int | None:
        return find_equivalent_round([summary], parse_dsl(CUSTOM), True, lambda one: codes[str(one["branch"])] == code)

    assert duplicate("code A") == 3 and duplicate("code B") is None


def test_same_config_is_new_with_other_code(run: Run) -> None:
    history = [row(1, dsl_config=MLP, branch="exp/r/01-x").dump() | {"forkable": True}]
    proposal = {"hypothesis": "h", "slug": "s", "fork_from": [], "proposal": MLP}

    def propose(answer: dict[str, Any], code_of_round: str) -> Any:
        codes = {"exp/r/01-x": code_of_round, None: "baseline"}
        role = LlmIdeator(ScriptedLM([answer] * 2), FakeResearch(True, codes=codes.__getitem__))
        view = run.memory.l2_for_ideator(run.env, run.baseline_config)
        return role(view.model_copy(update={"history": tuple(history)}))

    assert propose(proposal, "baseline") is None, "the same config and the same code"
    assert propose(proposal, "edited") is not None
    assert propose({**proposal, "code_change": "a gated head"}, "baseline").code_change == "a gated head"


def test_screen_is_recorded_charged_and_not_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trials_of(run)
    first = trials.screen(MLP, (), 0.05)
    assert first.status == "ok" and first.val is not None and first.val.shots == 5_000
    assert first.train_shots is not None and 0.03 < first.train_shots / 131_072 < 0.06
    assert read_contracts(run.layout.trials, Trial) == [first]
    assert trials.hours == pytest.approx(first.seconds / 3600) and first.seconds > 0
    # A copy of the file, as beside the cassette of a recorded run, replaces the measurement.
    recorded = run.layout.root.parent / "recorded.jsonl"
    shutil.move(run.layout.trials, recorded)
    monkeypatch.setattr(runner_trial, "run_trial", lambda *args: pytest.fail("measured again"))
    assert trials.screen(MLP, (), 0.05) == first
    replayed = trials_of(run, recorded)
    assert replayed.screen(MLP, (), 0.05).val == first.val
    assert [trial.key for trial in read_contracts(run.layout.trials, Trial)] == [first.key]


def test_result_is_not_used_before_it_is_on_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Trial(key="k", kind="screen", round=1, round_attempt_id="a", share=0.05, status="ok", seconds=1.0,
                   at="2026-01-01T00:00:00Z")  # type: ignore[arg-type]  # fmt: skip
    trials = trials_of(run)
    monkeypatch.setattr(trials, "_measure", lambda *args: result)

    def full(path: Path, value: Any) -> None:
        raise StorageError("the disk is full", location=str(path))

    monkeypatch.setattr(trials_module.jsonl, "append", full)
    with pytest.raises(StorageError):
        trials.screen(MLP, (), 0.05)
    monkeypatch.undo()
    assert trials.hours == 0.0 and not run.layout.trials.exists()


def test_time_of_a_trial_does_not_count_for_the_calls_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 1010.0, 1015.0])
    monkeypatch.setattr(deadline.time, "monotonic", lambda: next(clock))
    with deadline.calls_end_within(100.0):  # at 0
        with deadline.time_not_counted():  # from 10 to 1010
            pass
        assert deadline.call_deadline(math.inf) == 1100.0


def test_damaged_line_names_its_file(run: Run) -> None:
    jsonl.append(run.layout.trials, {"key": "x"})
    with pytest.raises(Exception, match=r"trials.jsonl:1"):
        trials_of(run)
