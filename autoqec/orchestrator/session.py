"""Runs the rounds of a new or resumed run; shared by the command line and the Python API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

from autoqec import plugins
from autoqec.contracts.events import Event, LlmUnusable, OnEvent, RunOpened
from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import RunInterruptedError, StorageError
from autoqec.orchestrator import loop
from autoqec.orchestrator.budget import Budget, Clock, InterruptHandler
from autoqec.orchestrator.executors import Executor
from autoqec.orchestrator.plugin_protocols import ExecutorPlugin, Waiting, executor_plugins, ideator_plugins
from autoqec.orchestrator.roles import build_roles
from autoqec.orchestrator.run import CheckedRun, Run
from autoqec.reporting.live_status import LiveStatusWriter, SessionLimits
from autoqec.store import run_log
from autoqec.store.layout import RunLayout
from autoqec.system import sandbox


@dataclass(frozen=True)
class SessionResult:
    """How a session ended.

    Attributes:
        notes: What extensions tell the user at the end.
        unusable_models: One line per language model of which no call could succeed.
    """

    layout: RunLayout
    outcome: loop.LoopResult
    notes: tuple[str, ...] = ()
    unusable_models: tuple[str, ...] = ()


def run_session(
    checked: CheckedRun,
    on_event: OnEvent,
    *,
    on_open: Callable[[Run], None] = lambda run: None,
    command_line: Sequence[str] = (),
    continued_since: datetime | None = None,
) -> SessionResult:
    """Start or resume a run and run rounds until a limit is reached or Ctrl-C is pressed.

    Args:
        checked: What to run.
        on_event: Called with every event.
        on_open: Called with the run before its first round.
        command_line: Recorded in run.json of a new run.
        continued_since: Start of a detached run that this process continues. The limit `hours` counts from it, and
            earlier requests to stop the run are kept.

    Raises:
        RunInterruptedError: Interrupted in the middle of a round; the run can be resumed.
        UsageError: The run cannot be started or resumed; nothing was written.
    """
    listeners, unusable_models, interrupts = [on_event], list[str](), InterruptHandler()
    began = time.time() if continued_since is None else continued_since.timestamp()

    def notify(event: Event) -> None:
        if isinstance(event, LlmUnusable):
            unusable_models.append(f"{event.model} was not called again: {event.what}")
        for listener in listeners:
            listener(event)

    with ExitStack() as stack:
        run = stack.enter_context(open_run(checked, notify, command_line, continued_since=continued_since))
        listeners.append(stack.enter_context(LiveStatusWriter(run.layout, _session_limits(run.info, began))))
        on_open(run)
        notify(RunOpened(run_id=run.layout.run_id, root=str(run.layout.root)))
        try:
            outcome = loop.run_rounds(run, on_event=notify, executor=_executor(run, interrupts), interrupts=interrupts)
        except KeyboardInterrupt as error:
            hint = f"autoqec run --resume {run.layout.run_id}"
            raise RunInterruptedError("interrupted during a round", location=run.layout.run_id, hint=hint) from error
        except StorageError as error:
            hint = f"{error.hint or 'look at the disk'}, then: autoqec run --resume {run.layout.run_id}"
            raise StorageError(error.message, location=error.location, hint=hint, code=error.code) from error
        notes = filter(None, [plugin.finish(run) for plugin in ideator_plugins()])
        return SessionResult(run.layout, outcome, tuple(notes), tuple(unusable_models))


def open_run(
    checked: CheckedRun,
    on_event: OnEvent,
    command_line: Sequence[str] = (),
    *,
    continued_since: datetime | None = None,
) -> Run:
    """Start the run, or resume it and store changed options; the caller closes it. For the arguments see `run_session`.

    Raises:
        UsageError: The run cannot be started or resumed, or jobs of a detached run hold it.
    """
    clock = Clock() if continued_since is None else Clock(time.time() - continued_since.timestamp())
    roles = partial(build_roles, on_event=run_log.logged(on_event))
    layout = checked.request.layout
    if layout is None:
        return Run.create(checked, roles, clock=clock, command_line=command_line, on_event=on_event)
    run = Run.open(checked, roles, clock=clock, on_event=on_event, withdraw_stop=continued_since is None)
    run.notes.extend(filter(None, [plugin.repair(layout) for plugin in executor_plugins()]))
    return run


def _executor(run: Run, interrupts: InterruptHandler) -> Executor:
    waiting = Waiting(partial(loop.stop_of_waiting, run, interrupts), lambda: interrupts.requested)
    if run.info.executor == "local":
        return loop.local_executor(run.info.parallel, waiting.stop_reason)
    plugin: ExecutorPlugin = plugins.load("autoqec.executors", run.info.executor)
    return plugin.open(run, waiting)


def _session_limits(spec: RunSpec, began: float) -> SessionLimits:
    """Return the limits of this session, for `watch`."""
    tokens = spec.budget.get("tokens")
    return SessionLimits(
        **asdict(Budget.of(spec)),
        usd=spec.budget.get("usd"),
        tokens=None if tokens is None else int(tokens),
        parallel=spec.parallel,
        began=began,
        sandbox=sandbox.probe(),
    )
