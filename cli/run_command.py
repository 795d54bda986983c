"""Terminal side of `autoqec run`: prints the plan of a dry run, or shows a session and its summary."""

from __future__ import annotations

import sys

from autoqec.cli.common import Output
from autoqec.contracts.events import Event, OnEvent
from autoqec.contracts.pins import format_pins
from autoqec.contracts.profiles import PROFILES
from autoqec.errors import RunInterruptedError
from autoqec.launch.options import RunOptions
from autoqec.launch.session import run_session
from autoqec.orchestrator import loop
from autoqec.reporting import run_report
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView, console


def show_plan(run_options: RunOptions, out: Output) -> None:
    """Print what the run would do, after all checks of a start; writes nothing."""
    profile = PROFILES[run_options.profile].dump()
    if run_options.env is not None:
        start = loop.check_start(
            run_options.env, run_options.root, run_options.profile, secret_file=run_options.secret_file
        )
        out.say(f"env       {start.env.name} ({run_options.env})")
        out.say(f"baseline  {start.baseline[:12]} of {start.repo.root}")
        for note in start.notes:
            out.say(f"note      {note}")
        base = {"env": start.env.dump(), "baseline": start.baseline, "notes": list(start.notes)}
    else:
        assert run_options.layout is not None  # a run is either new or resumed
        out.say(f"resume    {run_options.layout.run_id}")
        base = {"resume": run_options.layout.run_id}
    rounds = "until the budget is used up" if run_options.rounds is None else str(run_options.rounds)
    out.say(
        f"rounds    {rounds}, {run_options.parallel} at a time, proposed by "
        f"{run_options.choice.ideator}, seed {run_options.seed}"
    )
    if run_options.pins:
        out.say(f"pinned    {format_pins(run_options.pins)}, in every proposal")
    if run_options.cluster is not None:
        options = ", ".join(f"{key}={value}" for key, value in run_options.cluster.items())
        out.say(f"job       {options}; one per round")
    for role, model in run_options.settings.models.items():
        effort = "" if model.effort is None else f", effort {model.effort}"
        out.say(f"{role:<9} {model.model or 'default model'} through {model.backend}{effort}")
    if run_options.settings.budget:
        limits = ", ".join(f"{name} {value:g}" for name, value in run_options.settings.budget.items())
        out.say(f"budget    {limits}")
    for key, value in profile.items():
        out.say(f"profile   {key} = {value if isinstance(value, str) else f'{value:,}'}")
    plan = {
        "rounds": run_options.rounds,
        "parallel": run_options.parallel,
        "ideator": run_options.choice.ideator,
        "seed": run_options.seed,
    }
    plan["threads"] = run_options.round_threads
    settings = run_options.settings.dump()
    out.emit(
        {
            **base,
            **plan,
            "settings": settings,
            "pins": run_options.pins,
            "profile": profile,
            "slurm": run_options.cluster,
        }
    )


def execute_run(run_options: RunOptions, out: Output) -> int:
    """Run the rounds, show their progress and the summary; return the exit status."""
    target = console(err=out.json)
    with LiveView(target, quiet=out.quiet) as view:

        def on_open(run: loop.Run) -> None:
            view.dashboard = Dashboard(run.layout)
            for note in run.notes:
                out.note(note)

        session = run_session(run_options, _broadcast(view, out), on_open=on_open, command_line=sys.argv)
    report, outcome = run_report.load(session.layout), session.outcome
    if session.learned:
        out.note(f"{session.learned} rounds added to {run_options.choice.memory}")
    print_summary(target, report)
    out.note(f"Stopped: {outcome.stop_reason}")
    if outcome.interrupted:
        out.note(f"Resume: autoqec run --resume {session.layout.run_id}")
    out.emit({"event": "run_finished", "stopped": outcome.stop_reason, **report.dump()})
    if outcome.interrupted:
        return RunInterruptedError.exit_code
    return 0 if any(row.status == "ok" for row in outcome.rows or report.rows) else 1


def _broadcast(view: LiveView, out: Output) -> OnEvent:
    def on_event(event: Event) -> None:
        view(event)
        out.emit({"event": event.kind, **event.payload()})

    return on_event
