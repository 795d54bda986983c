"""Runs the rounds of a new or resumed run; shared by the command line and the Python API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime

from autoqec.contracts.events import Event, LlmUnusable, OnEvent, RunOpened
from autoqec.errors import RunInterruptedError, StorageError
from autoqec.extensions.slurm import detached
from autoqec.launch.options import RunOptions
from autoqec.launch.roles import RunBudget, build_roles, learn
from autoqec.orchestrator import loop
from autoqec.orchestrator.budget import Clock, InterruptHandler
from autoqec.orchestrator.run import RolesFactory, RunContext
from autoqec.reporting.live_status import LiveStatusWriter, SessionLimits
from autoqec.store.layout import RunLayout
from autoqec.system import sandbox


@dataclass(frozen=True)
class SessionResult:
    """How a session ended.

    Attributes:
        learned: Rounds added to the memory of `--memory`.
        unusable_models: One line per language model of which no call could succeed.
    """

    layout: RunLayout
    outcome: loop.LoopResult
    learned: int
    unusable_models: tuple[str, ...] = ()


def run_session(
    options: RunOptions,
    on_event: OnEvent,
    *,
    on_open: Callable[[loop.Run], None] = lambda run: None,
    command_line: Sequence[str] = (),
    detached_since: datetime | None = None,
) -> SessionResult:
    """Start or resume a run and run rounds until a limit is reached or Ctrl-C is pressed.

    Args:
        options: What to run.
        on_event: Called with every event.
        on_open: Called with the run before its first round.
        command_line: Recorded in run.json of a new run.
        detached_since: Start of a detached run that this process continues, which leaves jobs of the cluster to the
            next process when it is asked to end. The limit `hours` counts from it.

    Raises:
        RunInterruptedError: Interrupted in the middle of a round; the run can be resumed.
        UsageError: The run cannot be started or resumed; nothing was written.
    """
    with ExitStack() as stack:
        listeners, limits, interrupts = [on_event], RunBudget(), InterruptHandler()
        began = time.time() if detached_since is None else detached_since.timestamp()
        clock = Clock(time.time() - began)
        leave = None if detached_since is None else lambda: interrupts.requested
        unusable_models: list[str] = []

        def notify(event: Event) -> None:
            if isinstance(event, LlmUnusable):
                unusable_models.append(f"{event.model} was not called again: {event.what}")
            for listener in listeners:
                listener(event)

        def roles(context: RunContext) -> loop.Roles:
            nonlocal limits
            built, limits = build_roles(options.choice, context, notify, options.budget, clock)
            return built

        run = stack.enter_context(open_run(options, roles, notify, command_line))
        listeners.append(stack.enter_context(LiveStatusWriter(run.layout, _session_limits(options, began))))
        on_open(run)
        notify(RunOpened(run_id=run.layout.run_id, root=str(run.layout.root)))
        try:
            outcome = loop.run_rounds(
                run,
                options.rounds,
                notify,
                budget=limits,
                parallel=options.parallel,
                executor=options.executor(leave),
                interrupts=interrupts,
                clock=clock,
            )
        except KeyboardInterrupt as error:
            hint = f"autoqec run --resume {run.layout.run_id}"
            raise RunInterruptedError("interrupted during a round", location=run.layout.run_id, hint=hint) from error
        except StorageError as error:
            hint = f"{error.hint or 'look at the disk'}, then: autoqec run --resume {run.layout.run_id}"
            raise StorageError(error.message, location=error.location, hint=hint, code=error.code) from error
        return SessionResult(run.layout, outcome, learn(options.choice, run), tuple(unusable_models))


def open_run(options: RunOptions, roles: RolesFactory, on_event: OnEvent, command_line: Sequence[str]) -> loop.Run:
    """Start the run, or resume it and store changed settings; the caller closes it.

    Raises:
        UsageError: The run cannot be started or resumed, or jobs of a detached run hold it.
    """
    if options.layout is not None:
        detached.require_free(options.layout)
        run = loop.resume_run(
            options.layout.run_id,
            options.root,
            roles=roles,
            threads=options.round_threads,
            trained_here=options.cluster is None,
            on_event=on_event,
            recorded=options.recorded,
            withdraw_stop=not detached.is_own_job(options.layout.run_id),
        )
        change = run.memory.history.update_settings(options.settings)
        if change is not None:
            had_settings, run.info = run.info.settings is not None, run.memory.history.info()
            if had_settings:
                changes = ", ".join(f"{name} = {value}" for name, value in change.changed.items())
                run.notes.append(f"settings of the run changed: {changes}")
        return run
    assert options.env is not None  # a run is either new or resumed
    return loop.start_run(
        options.env,
        options.root,
        options.profile,
        options.seed,
        options.choice.ideator,
        secret_file=options.secret_file,
        roles=roles,
        threads=options.round_threads,
        trained_here=options.cluster is None,
        pins=options.pins,
        command_line=tuple(command_line),
        settings=options.settings,
        scale=options.scale,
        on_event=on_event,
    )


def _session_limits(options: RunOptions, began: float) -> SessionLimits:
    """Return the limits of this session, for `watch`."""
    limits = asdict(options.budget)
    rounds = [number for number in (options.rounds, limits.pop("rounds")) if number is not None]
    return SessionLimits(
        **limits,
        rounds=min(rounds, default=None),
        usd=options.choice.max_usd,
        tokens=options.choice.max_tokens,
        parallel=options.parallel,
        began=began,
        sandbox=sandbox.probe(),
    )
