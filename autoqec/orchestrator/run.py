"""An opened run, which this process holds until it closes it: how it is created, and how it is resumed."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, RunResumed, RunStarted, ignore
from autoqec.contracts.history import RunInfo
from autoqec.contracts.messages import AnalystResponse, CoderResponse, IdeatorResponse
from autoqec.contracts.views import AnalystView, CoderView, IdeatorView
from autoqec.ideators import analyst, coder
from autoqec.orchestrator.budget import Clock
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.run_directory import create_run_directory
from autoqec.orchestrator.run_request import RunRequest
from autoqec.orchestrator.secret import read_secret
from autoqec.store import atomic, run_control, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RunState
from autoqec.system import machine
from autoqec.system.git import Repo

if TYPE_CHECKING:
    from autoqec.runner.shot_source import RunShots


@dataclass(frozen=True)
class Roles:
    """The roles of a run. If one returns None, its counterpart without a language model takes over for the round.

    Attributes:
        ideator: Proposes the config of a round.
        coder: Turns a proposal into file edits.
        analyst: Summarizes a measured round and nominates it for verification.
        open_modules: Whether the Coder sees and may edit the editable modules, not only the config.
        stop_reason: Asked before every round: why there is none; None: it may start.
        extra_hours: Compute hours that the rows of the run do not contain, such as those of trials.
    """

    ideator: Callable[[IdeatorView], IdeatorResponse | None]
    coder: Callable[[CoderView], CoderResponse | None] = coder.code
    analyst: Callable[[AnalystView], AnalystResponse | None] = analyst.analyse
    open_modules: bool = False
    stop_reason: Callable[[RunState], str | None] = lambda state: None
    extra_hours: Callable[[], float] = lambda: 0.0


RolesFactory = Callable[["Run"], Roles]  # builds roles that need the opened run, e.g. to record calls in its directory


@dataclass(frozen=True)
class NetworkOptions:
    """What a predecoder of an env can have.

    Attributes:
        inputs: What it can read: `all` if no detector lies outside the inner decoder's sector, else `other_sector`.
        gate_available: Whether its config can have a `gate`, which needs the complementary gap of matching.
    """

    inputs: str
    gate_available: bool


@dataclass(frozen=True)
class CheckedRun:
    """A run to start or to resume that passed every check; nothing is written yet.

    Attributes:
        request: What was asked for, with checked options.
        env_text: The env file with its circuit files included, as the run stores it.
        baseline: The commit that rounds fork from.
        baseline_config: The config of that commit's editable modules.
        network_options: What a predecoder of this env can have.
        notes: Messages for the user.
        recorded: The shots that the env's code brings, if the run is to be provided with them.
        secret: The verifier's secret of a new run.
    """

    request: RunRequest
    env: EnvSpec
    env_text: str
    baseline: str
    baseline_config: dict[str, Any]
    network_options: NetworkOptions
    notes: tuple[str, ...] = ()
    recorded: RunShots | None = None
    secret: bytes = field(default=b"", repr=False)


@dataclass
class Run:
    """A run that this process holds; a context manager that releases it at the end.

    Attributes:
        info: Its specification and what its start found, as in run.json.
        baseline_config: The config of the baseline commit.
        network_options: What a predecoder of this env can have.
        memory: History and views.
        clock: Time that counts for the limit `hours`.
        notes: Messages for the user.
        roles: Set once the run is held.
    """

    repo: Repo
    layout: RunLayout
    info: RunInfo
    env: EnvSpec
    env_text: str
    baseline_config: dict[str, Any]
    network_options: NetworkOptions
    memory: RunMemory
    clock: Clock = field(default_factory=Clock)
    notes: list[str] = field(default_factory=list)
    roles: Roles = field(init=False)
    _held: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def create(
        cls,
        checked: CheckedRun,
        roles: Roles | RolesFactory,
        *,
        clock: Clock | None = None,
        command_line: Sequence[str] = (),
        on_event: OnEvent = ignore,
    ) -> Self:
        """Create a run. The caller closes it.

        Args:
            checked: The run.
            roles: The roles, or a function that builds them for the opened run.
            clock: Time that counts for the limit `hours`.
            command_line: Recorded in run.json.
            on_event: Receives the progress of reading recorded shots.

        Raises:
            UsageError: The roles cannot be built; nothing was written.
        """

        def fill(partial: RunLayout, run_id: str) -> None:
            _fill(partial, checked, _run_info(checked, run_id, command_line), on_event)

        layout = create_run_directory(checked.request.root, fill)
        try:
            run = cls._hold(checked, layout, roles, clock)
        except BaseException:
            shutil.rmtree(layout.root, ignore_errors=True)
            raise
        run.notes.extend(checked.notes)
        run.memory.rebuild_views()
        failpoint("run_created")
        info = run.info
        run_log.record(RunStarted(run_id=info.run_id, env=info.env_name, profile=info.profile, seed=info.seed))
        return run

    @classmethod
    def open(
        cls,
        checked: CheckedRun,
        roles: Roles | RolesFactory,
        *,
        clock: Clock | None = None,
        on_event: OnEvent = ignore,
        withdraw_stop: bool = True,
    ) -> Self:
        """Resume a run after recovery has made its files and branches match its history. The caller closes it.

        Args:
            checked: The run.
            roles: The roles, or a function that builds them for the opened run.
            clock: Time that counts for the limit `hours`.
            on_event: Receives the progress of reading recorded shots, and the events of recovery.
            withdraw_stop: Whether this start replaces earlier requests of `autoqec stop`; not if it continues a
                detached run.

        Raises:
            UsageError: Another process holds the run.
            ManualInterventionRequired: Recovery needs a decision of the user.
        """
        layout = checked.request.layout
        assert layout is not None  # a run is either new or resumed
        run = cls._hold(checked, layout, roles, clock, withdraw_stop=withdraw_stop)
        try:
            run.notes.extend(checked.notes)
            run_log.record(RunResumed(run_id=layout.run_id, notes=tuple(run.notes)))
            if checked.recorded is not None:
                checked.recorded.provide(layout.round(1).dir, on_event, moved=True)
            actions = recover(layout, run.repo, run_log.logged(on_event), memory=run.memory)
            run.notes.extend(f"recovery: {action.describe()}" for action in actions)
            run._store_options(checked)
        except BaseException:
            run.__exit__(*sys.exc_info())
            raise
        return run

    @classmethod
    def _hold(
        cls,
        checked: CheckedRun,
        layout: RunLayout,
        roles: Roles | RolesFactory,
        clock: Clock | None,
        *,
        withdraw_stop: bool = False,
    ) -> Self:
        """Take the lock of the run, withdraw requests to stop it that are older, then build its roles."""
        memory = RunMemory(layout.root)
        run = cls(
            checked.request.repo,
            layout,
            memory.history.info(),
            checked.env,
            checked.env_text,
            checked.baseline_config,
            checked.network_options,
            memory,
            clock or Clock(),
        )
        owner = run._held.enter_context(hold_run(layout, "run"))
        if owner.warning:
            run.notes.append(owner.warning)
        if owner.killed_pids:
            run.notes.append(f"ended {len(owner.killed_pids)} leftover processes of an earlier start")
        try:
            if withdraw_stop:  # before anything that takes time: a request is accepted as soon as the run is held
                run_control.withdraw_stop(layout)
            run.info = run.info.model_copy(update=checked.request.spec.fields())
            run.roles = roles if isinstance(roles, Roles) else roles(run)
        except BaseException:
            run.__exit__(*sys.exc_info())
            raise
        return run

    def _store_options(self, checked: CheckedRun) -> None:
        """Write the options that this start changed to run.json."""
        change = self.memory.history.update_spec(checked.request.spec)
        if change is not None:
            self.info = self.memory.history.info()
            changes = ", ".join(f"{name} = {value}" for name, value in change.changed.items())
            self.notes.append(f"settings of the run changed: {changes}")

    @property
    def threads(self) -> int:
        """Threads of each Runner child; results depend on the number in their last digits."""
        return self.info.round_threads

    def read_secret(self) -> bytes:
        """Return the verifier's secret; it is read on demand and not kept in memory."""
        return read_secret(self.layout, self.info)

    def round_seed(self, number: int) -> int:
        """Return the Runner's seed of a round, a function of the run's seed and the round number."""
        text = f"autoqec/round-seed/{self.info.seed}/{number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31

    def close(self) -> None:
        """Release the run."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)


def _fill(partial: RunLayout, checked: CheckedRun, info: RunInfo, on_event: OnEvent) -> None:
    """Write the files of a new run; run.json, which makes it one, comes last."""
    atomic.write_text(partial.env, checked.env_text)
    atomic.write_bytes(partial.secret, checked.secret, mode=0o600)
    if checked.recorded is not None:
        checked.recorded.provide(partial.round(1).dir, on_event)
    History(partial).write_info(info)


def _run_info(checked: CheckedRun, run_id: str, command_line: Sequence[str]) -> RunInfo:
    return RunInfo(
        **checked.request.spec.fields(),
        run_id=run_id,
        env_name=checked.env.name,
        env_yaml_sha256=sha256_bytes(checked.env_text.encode()),
        baseline_sha=checked.baseline,
        baseline_ref=checked.request.repo.head_ref(),
        sealed_shots=checked.env.code.own_shots,
        code_sha256=machine.code_sha256(),
        package_sha256=machine.package_sha256(),
        secret_sha256=sha256_bytes(checked.secret),
        versions=machine.versions(),
        command_line=tuple(command_line),
    )
