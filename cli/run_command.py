"""What `autoqec run` does: it shows the plan of a dry run, or the progress and the summary of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from autoqec.cli.common import Output
from autoqec.cli.progress import broadcast
from autoqec.contracts.pins import format_pins
from autoqec.errors import RunInterruptedError
from autoqec.orchestrator.plugin_protocols import Ended, Launch, executor_plugins, run_plugins
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.run import CheckedRun, Run
from autoqec.orchestrator.run_options import request_run
from autoqec.orchestrator.run_request import RunRequest
from autoqec.orchestrator.session import open_run, run_session
from autoqec.reporting import run_report
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView, console
from autoqec.reporting.text import plain
from autoqec.system import run_lock


@dataclass
class RunCommand:
    """One call of `autoqec run`.

    Attributes:
        env_name: Env of a new run, as the user named it.
        given: The options that the user gave.
        resume: The run to resume, as the user named it.
    """

    env_name: str | None
    given: Mapping[str, Any]
    resume: str | None
    out: Output

    @cached_property
    def checked(self) -> CheckedRun:
        """The run after all checks of a start or a resume, which are done once."""
        request = request_run(self.env_name, self.given, self.resume)
        from autoqec.orchestrator.run_checks import check  # imports stim and PyMatching

        with LiveView(console(err=True), quiet=self.out.quiet) as view:
            return check(request, view)

    def carry_out(self) -> int:
        """Run the rounds, here or in jobs; return the exit status."""
        launch = Launch(self.resume, lambda: self.checked.request, self._open, self._run, self.out.say, self.out.emit)
        codes = (plugin.carry_out(launch) for plugin in executor_plugins())
        code = next((code for code in codes if code is not None), None)
        return self._run(None).exit_status if code is None else code

    def _open(self) -> AbstractContextManager[Run]:
        view = LiveView(console(err=self.out.json), quiet=self.out.quiet)
        run = open_run(self.checked, broadcast(view, self.out), sys.argv)
        self._note(run.notes)
        return run

    def _run(self, continued_since: datetime | None) -> Ended:
        """Run the rounds, show their progress and the summary."""
        checked, out = self.checked, self.out
        target = console(err=out.json)
        with LiveView(target, quiet=out.quiet) as view:

            def on_open(run: Run) -> None:
                view.dashboard = Dashboard(run.layout)
                self._note(run.notes)

            session = run_session(
                checked, broadcast(view, out), on_open=on_open, command_line=sys.argv, continued_since=continued_since
            )
        report, outcome = run_report.load(session.layout), session.outcome
        self._note(session.notes)
        print_summary(target, report)
        self._note(f"Language model {plain(model, 600)}" for model in session.unusable_models)
        out.note(f"Stopped: {outcome.stop_reason}")
        if outcome.interrupted:
            out.note(f"Resume: autoqec run --resume {session.layout.run_id}")
        ended = {"stopped": outcome.stop_reason, "unusable_models": session.unusable_models}
        out.emit({"event": "run_finished", **ended, **report.dump()})
        has_result = any(row.status == "ok" for row in outcome.rows or report.rows)
        code = 0 if has_result and not session.unusable_models else 1
        code = RunInterruptedError.exit_code if outcome.interrupted else code
        return Ended(outcome.stop_reason, outcome.interrupted, code)

    def _note(self, notes: Iterable[str]) -> None:
        for note in notes:
            self.out.note(note)

    def show_plan(self) -> None:
        """Print what the run would do, after all checks of a start or a resume; writes nothing."""
        checked, out = self.checked, self.out
        request, spec = checked.request, checked.request.spec
        head = _new_run(checked, out) if request.layout is None else _resumed_run(checked, out)
        for line in _plan_lines(request):
            out.say(line)
        profile = spec.scaled_profile().dump()
        for key, value in profile.items():
            out.say(f"profile   {key} = {value if isinstance(value, str) else f'{value:,}'}")
        plan = head | {name: getattr(spec, name) for name in ("rounds", "parallel", "ideator", "seed")}
        plan |= {
            "threads": spec.round_threads,
            "settings": spec.settings(),
            "pins": spec.pins,
            "profile": profile,
            "scale": spec.scale,
        }
        for plugin in run_plugins():
            plan |= plugin.plan_values(request)
        out.emit(plan)


def _new_run(checked: CheckedRun, out: Output) -> dict[str, Any]:
    out.say(f"env       {checked.env.name} ({checked.request.env_path})")
    out.say(f"baseline  {checked.baseline[:12]} of {checked.request.root}")
    _say_notes(checked, out)
    return {"env": checked.env.dump(), "baseline": checked.baseline, "notes": list(checked.notes)}


def _resumed_run(checked: CheckedRun, out: Output) -> dict[str, Any]:
    """Check what a resume checks beyond the rest: the lock, and what recovery would do."""
    layout = checked.request.layout
    assert layout is not None
    run_lock.require_unlocked(layout.root)
    actions = [action.describe() for action in reconcile(layout, checked.request.repo, dry_run=True)]
    out.say(f"resume    {layout.run_id}")
    out.say(f"env       {checked.env.name}")
    out.say(f"baseline  {checked.baseline[:12]} of {checked.request.root}")
    _say_notes(checked, out)
    for action in actions:
        out.say(f"recovery  {plain(action, 600)}")
    return {"resume": layout.run_id, "notes": list(checked.notes), "recovery": actions}


def _say_notes(checked: CheckedRun, out: Output) -> None:
    for note in checked.notes:
        out.say(f"note      {note}")


def _plan_lines(request: RunRequest) -> Iterator[str]:
    """Describe rounds, pins, limits, and what extensions do, one per line."""
    spec = request.spec
    rounds = "until the budget is used up" if spec.rounds is None else str(spec.rounds)
    yield f"rounds    {rounds}, {spec.parallel} at a time, proposed by {spec.ideator}, seed {spec.seed}"
    if request.n_edges is not None:
        yield f"scale     {spec.scale:g}, for a matching graph of {request.n_edges:,} edges; --scale sets another one"
    elif spec.scale != 1:
        yield f"scale     {spec.scale:g}"
    if spec.pins:
        yield f"pinned    {format_pins(spec.pins)}, in every proposal"
    for plugin in reversed(run_plugins()):  # jobs before models
        yield from plugin.plan(request)
    if spec.budget:
        yield f"budget    {', '.join(f'{name} {value:g}' for name, value in spec.budget.items())}"
