"""Starts or resumes a run, which this process then holds until it closes it."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, RunResumed, RunStarted, ignore
from autoqec.contracts.history import RunInfo
from autoqec.contracts.messages import AnalystResponse, CoderResponse, IdeatorResponse
from autoqec.contracts.pins import Pins, family_pins, validate_pins
from autoqec.contracts.profiles import ProfileName, profile_of
from autoqec.contracts.settings import RunSettings
from autoqec.contracts.views import AnalystView, CoderView, IdeatorView
from autoqec.errors import UsageError
from autoqec.ideators import analyst, coder
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.run_checks import NetworkOptions, StartCheck, check_resume, check_start
from autoqec.orchestrator.run_directory import create_run_directory
from autoqec.orchestrator.secret import read_secret
from autoqec.store import atomic, run_control, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RunState
from autoqec.system import machine
from autoqec.system.git import Repo

# Ideators without a language model, by name; their modules are imported on demand.
BUILTIN_IDEATORS = {
    "tpe": "autoqec.ideators.tpe",
    "random": "autoqec.ideators.random",
    "evolve": "autoqec.ideators.evolve",
    "policy": "autoqec.extensions.continual.environments.policy_ideator",
}


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


def search(name: str) -> Callable[[IdeatorView], IdeatorResponse]:
    """Return the ideator of a name in `BUILTIN_IDEATORS`. Raises UsageError for an unknown name."""
    if name not in BUILTIN_IDEATORS:
        raise UsageError(
            f"unknown ideator {name!r}", location="--ideator", hint=f"one of {', '.join(BUILTIN_IDEATORS)}"
        )
    propose: Callable[[IdeatorView], IdeatorResponse] = importlib.import_module(BUILTIN_IDEATORS[name]).propose
    return propose


@dataclass
class RunContext:
    """An opened run without its roles. Everything except `threads` is on disk.

    Attributes:
        baseline_config: The config of the baseline commit.
        network_options: What a predecoder of this env can have.
        threads: Threads of each Runner child; results depend on the number in their last digits.
        notes: Messages for the user.
        held: Releases the run when it is closed.
    """

    repo: Repo
    layout: RunLayout
    info: RunInfo
    env: EnvSpec
    env_text: str
    baseline_config: dict[str, Any]
    network_options: NetworkOptions
    threads: int
    memory: RunMemory
    notes: list[str]
    held: ExitStack

    def read_secret(self) -> bytes:
        """Return the verifier's secret; it is read on demand and not kept in memory."""
        return read_secret(self.layout, self.info)

    def round_seed(self, number: int) -> int:
        """Return the Runner's seed of a round, a function of the run's seed and the round number."""
        text = f"autoqec/round-seed/{self.info.seed}/{number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31


@dataclass
class Run(RunContext):
    """A run that this process holds; a context manager that releases it at the end."""

    roles: Roles

    def close(self) -> None:
        """Release the run."""
        self.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held.__exit__(kind, error, trace)


# Builds roles that need the opened run, such as those that record their calls in its directory.
RolesFactory = Callable[[RunContext], Roles]


def start_run(
    env_path: Path | str,
    repo: Path | str,
    profile: ProfileName = "dev",
    seed: int = 1,
    ideator: str = "tpe",
    *,
    secret_file: Path | str | None = None,
    roles: Roles | RolesFactory | None = None,
    threads: int = 1,
    trained_here: bool = True,
    pins: Pins | None = None,
    settings: RunSettings | None = None,
    scale: float = 1.0,
    command_line: tuple[str, ...] = (),
    on_event: OnEvent = ignore,
) -> Run:
    """Start a run in a repository. The caller closes it.

    Args:
        env_path: The env file.
        repo: A directory of the repository.
        profile: The amount of training and verification per round.
        seed: Seed of the proposals and rounds.
        ideator: Name in run.json; without `roles` one of `BUILTIN_IDEATORS`.
        secret_file: File with the verifier's secret, for tests and replays; by default 32 random bytes.
        roles: The roles, or a function that builds them for the opened run.
        threads: Threads of each Runner child.
        trained_here: Whether rounds are trained in the memory of this process, not in jobs of a cluster.
        pins: DSL values that every proposal must have.
        settings: Settings that a resume inherits.
        scale: Factor on the profile's training and verification.
        command_line: Recorded in run.json.
        on_event: Receives the progress of the checks.

    Returns:
        The run, held by this process.

    Raises:
        UsageError: An argument or the repository is not usable; nothing was written.
    """
    validate_pins(pins or {})
    profile_of(profile, scale)
    start = check_start(
        env_path,
        repo,
        profile,
        pins=pins,
        secret_file=secret_file,
        trained_here=trained_here,
        on_event=on_event,
    )
    roles = roles or Roles(search(ideator))
    common: dict[str, Any] = {
        "settings": settings,
        "profile": profile,
        "scale": scale,
        "seed": seed,
        "ideator": ideator,
        "pins": validate_pins(family_pins(pins or {}, 1 + len(start.env.other_members))),
        "command_line": command_line,
    }

    def fill(partial: RunLayout, run_id: str) -> None:
        _fill(partial, start, _run_info(start, run_id=run_id, **common), on_event)

    layout = create_run_directory(start.repo.root, fill)
    run = _open_new(start, layout, roles, threads)
    run.memory.rebuild_views()
    failpoint("run_created")
    run_log.record(RunStarted(run_id=layout.run_id, env=start.env.name, profile=profile, seed=seed))
    return run


def _fill(partial: RunLayout, start: StartCheck, info: RunInfo, on_event: OnEvent) -> None:
    """Write the files of a new run; run.json, which makes it one, comes last."""
    atomic.write_text(partial.env, start.env_text)
    atomic.write_bytes(partial.secret, start.secret, mode=0o600)
    if start.recorded is not None:
        start.recorded.provide(partial.round(1).dir, on_event)
    History(partial).write_info(info)


def _open_new(start: StartCheck, layout: RunLayout, roles: Roles | RolesFactory, threads: int) -> Run:
    """Open a run whose directory was just created; delete the directory if that fails."""
    try:
        run = _open(
            start.repo, layout, start.env, start.env_text, start.baseline_config, start.network_options, roles, threads
        )
    except BaseException:
        shutil.rmtree(layout.root, ignore_errors=True)
        raise
    run.notes.extend(start.notes)
    return run


def resume_run(
    run_id: str,
    repo: Path | str,
    *,
    roles: Roles | RolesFactory | None = None,
    threads: int = 1,
    trained_here: bool = True,
    on_event: OnEvent | None = None,
    recorded: Path | None = None,
    withdraw_stop: bool = True,
) -> Run:
    """Resume a run after recovery has made its files and branches match its history. The caller closes it.

    Args:
        run_id: The run.
        repo: A directory of the repository.
        roles: The roles, or a function that builds them; by default those of the ideator in run.json.
        threads: Threads of each Runner child.
        trained_here: Whether rounds are trained in the memory of this process, not in jobs of a cluster.
        on_event: Receives the progress of reading recorded shots, and the events of recovery.
        recorded: Directory of the run's recorded shots, if it has moved or the run was restored from an archive.
        withdraw_stop: Whether this start replaces earlier requests of `autoqec stop`; not if it continues a detached
            run.

    Returns:
        The run, held by this process.

    Raises:
        UsageError: The run does not exist, another process holds it, it is closed, or its recorded shots are missing.
        ManualInterventionRequired: Env, secret, baseline or code have changed since the start of the run, or recovery
            needs a decision of the user.
    """
    start = check_resume(run_id, repo, recorded, trained_here=trained_here, on_event=on_event or ignore)
    layout, workspace = start.layout, start.repo
    roles = roles or Roles(search(start.info.ideator))
    run = _open(
        workspace,
        layout,
        start.env,
        start.env_text,
        start.baseline_config,
        start.network_options,
        roles,
        threads,
        withdraw_stop=withdraw_stop,
    )
    run.notes.extend(start.notes)
    run_log.record(RunResumed(run_id=run_id, notes=tuple(run.notes)))
    try:
        if start.recorded is not None:
            start.recorded.provide(layout.round(1).dir, on_event or ignore, moved=True)
        actions = recover(layout, workspace, run_log.logged(on_event), memory=run.memory)
    except BaseException:
        run.__exit__(*sys.exc_info())
        raise
    run.notes.extend(f"recovery: {action.describe()}" for action in actions)
    return run


def _open(
    repo: Repo,
    layout: RunLayout,
    env: EnvSpec,
    env_text: str,
    baseline_config: dict[str, Any],
    network_options: NetworkOptions,
    roles: Roles | RolesFactory,
    threads: int,
    *,
    withdraw_stop: bool = False,
) -> Run:
    """Take the lock of the run, withdraw requests to stop it that are older, then build its roles."""
    memory, notes, held = RunMemory(layout.root), list[str](), ExitStack()
    info = memory.history.info()
    context = RunContext(
        repo, layout, info, env, env_text, baseline_config, network_options, threads, memory, notes, held
    )
    owner = held.enter_context(hold_run(layout, "run"))
    if owner.warning:
        notes.append(owner.warning)
    if owner.killed_pids:
        notes.append(f"ended {len(owner.killed_pids)} leftover processes of an earlier start")
    try:
        if withdraw_stop:  # before anything that takes time: the command accepts a request as soon as the run is held
            run_control.withdraw_stop(layout)
        return Run(**vars(context), roles=roles if isinstance(roles, Roles) else roles(context))
    except BaseException:
        held.__exit__(*sys.exc_info())
        raise


def _run_info(start: StartCheck, **more: Any) -> RunInfo:
    return RunInfo(
        env_name=start.env.name,
        env_yaml_sha256=sha256_bytes(start.env_text.encode()),
        baseline_sha=start.baseline,
        baseline_ref=start.repo.head_ref(),
        code_sha256=machine.code_sha256(),
        package_sha256=machine.package_sha256(),
        secret_sha256=sha256_bytes(start.secret),
        sealed_shots=start.env.code.own_shots,
        versions=machine.versions(),
        **more,
    )
