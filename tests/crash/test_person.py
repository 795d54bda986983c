"""A person at work in the repository while rounds come, die and are recovered: any order of it, found by Hypothesis."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from autoqec.cli.workspace import make_workspace
from autoqec.errors import ManualInterventionRequired, UsageError
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import fold
from autoqec.system import run_lock
from autoqec.system.git import Repo
from tests.crash.invariants import Before, git, refs, run_ids
from tests.crash.starts import ENV, recover_and_check
from tests.crash.sweep import Zygote, has_compiler, zygote

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C compiler; install: apt-get install gcc (on Linux)")
VIEWS = ("pareto.json", "pareto_preview.json", "fork_graph.json", "log.md")


class UserActions(RuleBasedStateMachine):
    """`process` and `pristine` (a lab with one round) are set by the test."""

    process: Zygote
    pristine: Path

    def __init__(self) -> None:
        super().__init__()
        self.process.restore(self.pristine)
        self.workspace = self.process.workspace
        (run_id,) = run_ids(self.workspace)
        self.layout, self.repo = RunLayout(self.workspace, run_id), Repo.discover(self.workspace)
        self.notes = 0

    def _branch(self, which: int) -> str | None:
        names = sorted(name for name in refs(self.workspace) if name.startswith(("exp/", "quarantine/")))
        return names[which % len(names)] if names else None

    @rule(at=st.integers(0, 330), mode=st.sampled_from(["kill", "torn", "enospc", "eio"]), sticky=st.booleans())
    def a_round_that_may_die(self, at: int, mode: str, sticky: bool) -> None:
        rows = RunMemory(self.layout.root).history.rows()
        finished = sum(row.status == "ok" for row in rows)
        ended = self.process.start(finished + 1, self.layout.run_id, at=at, mode=mode, sticky=sticky)
        assert ended.returncode != 70, ended

    @rule()
    def they_commit(self) -> None:
        self.notes += 1
        (self.workspace / f"note{self.notes}.md").write_text("mine")
        git(self.workspace, "add", f"note{self.notes}.md")
        git(self.workspace, "commit", "-q", "-m", "mine")

    @rule()
    def they_leave_a_file_about(self) -> None:
        (self.workspace / "scratch.txt").write_text("mine")

    # No draw depends on what the lab holds: where a round dies is not the same to the call on every day, and Hypothesis
    # plays the same draws again.
    @rule(which=st.integers(0, 59))
    def they_delete_a_branch(self, which: int) -> None:
        name = self._branch(which)
        if name is not None:
            git(self.workspace, "branch", "-D", name)

    @rule(which=st.integers(0, 59))
    def they_rename_a_branch_into_the_other_place(self, which: int) -> None:
        name = self._branch(which)
        if name is not None:
            place, _, rest = name.partition("/")
            other = f"{'quarantine' if place == 'exp' else 'exp'}/{rest}"
            if other not in refs(self.workspace):
                git(self.workspace, "branch", "-m", name, other)

    @rule()
    def they_clean_up(self) -> None:
        git(self.workspace, "reflog", "expire", "--expire=now", "--all")
        git(self.workspace, "gc", "-q", "--prune=now")

    @rule(name=st.sampled_from(VIEWS))
    def they_delete_or_spoil_a_view(self, name: str) -> None:
        (self.layout.root / name).write_text("spoilt")

    @rule()
    def they_lose_the_pins(self) -> None:
        for one in [*fold(RunMemory(self.layout.root).history.rows()).rounds.values()]:
            if one.branch:
                git(self.workspace, "update-ref", "-d", self.layout.pin(one.attempt_id))

    @rule()
    def they_make_a_branch_under_our_names(self) -> None:
        git(self.workspace, "branch", f"exp/{self.layout.run_id}/99-mine")
        with pytest.raises(ManualInterventionRequired):
            reconcile(self.layout, self.repo)
        git(self.workspace, "branch", "-D", f"exp/{self.layout.run_id}/99-mine")

    @rule()
    def they_start_twice(self) -> None:
        with run_lock.lock_run(self.layout.root), pytest.raises(UsageError):
            reconcile(self.layout, self.repo)

    @rule()
    def a_power_cut_tears_the_last_line(self) -> None:
        with self.layout.attempts.open("a") as stream:
            stream.write('{"kind":"planned","rou')

    @invariant()
    def nothing_is_lost_and_nothing_is_there_twice(self) -> None:
        recover_and_check(self.workspace, Before.of(self.workspace), self.layout.run_id)


def played(examples: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as directory, zygote(Path(directory)) as process:
        make_workspace(process.workspace, ENV)
        assert process.start(1).returncode == 0
        shutil.copytree(process.workspace, Path(directory) / "pristine", symlinks=True)
        UserActions.process, UserActions.pristine = process, Path(directory) / "pristine"
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            UserActions,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=checks,
            ),
        )


def test_a_person_at_work() -> None:
    played(25, 20)


@pytest.mark.long
def test_a_person_at_work_for_days() -> None:
    played(300, 50)
