"""Terminal output of `autoqec run`: the plan of a dry run, or progress and summary of a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from autoqec import locate
from autoqec.cli.common import Output
from autoqec.cli.progress import broadcast
from autoqec.contracts.pins import format_pins
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.settings import ModelSettings
from autoqec.errors import RunInterruptedError
from autoqec.extensions.language_models import model_access
from autoqec.extensions.language_models.clients.config import round_timeout_s
from autoqec.extensions.language_models.clients.prices import price_list
from autoqec.extensions.language_models.clients.scripted import PREFIX as SCRIPTED
from autoqec.extensions.slurm import detached
from autoqec.launch.options import RunOptions
from autoqec.launch.role_options import LLM_LIMITS
from autoqec.launch.roles import build_roles
from autoqec.launch.session import open_run, run_session
from autoqec.orchestrator import loop
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.run import RunContext
from autoqec.reporting import run_report
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView, console
from autoqec.reporting.text import plain, pluralize
from autoqec.system import run_lock


def show_plan(run_options: RunOptions, out: Output) -> None:
    """Print what the run would do, after all checks of a start or a resume; writes nothing."""
    checked = _check_new_run(run_options, out) if run_options.layout is None else _check_resumed_run(run_options, out)
    profile = profile_of(run_options.profile, run_options.scale).dump()
    settings = run_options.settings.dump()
    for line in _plan_lines(run_options):
        out.say(line)
    for key, value in profile.items():
        out.say(f"profile   {key} = {value if isinstance(value, str) else f'{value:,}'}")
    out.emit(
        {
            **checked,
            "rounds": run_options.rounds,
            "parallel": run_options.parallel,
            "ideator": run_options.choice.ideator,
            "seed": run_options.seed,
            "threads": run_options.round_threads,
            "settings": settings,
            "pins": run_options.pins,
            "profile": profile,
            "scale": run_options.scale,
            "slurm": run_options.cluster,
            "detached": run_options.orchestrator,
            "container": None if run_options.image is None else run_options.image.sha256,
        }
    )


def _price(model: ModelSettings) -> str:
    """Return the price of a model: the user's, that of the dated price list, or that none is known."""
    if model.model is not None and model.model.startswith(SCRIPTED):
        return ", free"
    known = price_list()
    listed = None if model.price or model.model is None else known.models.get(model.model)
    price = model.price or (listed.model_dump(exclude_none=True) if listed else None)
    if price is None:
        return ", price not known"
    source = "as given" if model.price else f"as of {known.as_of}"
    return f", ${price['input']:g} in and ${price['output']:g} out per million tokens ({source})"


def _model_lines(run_options: RunOptions) -> Iterator[str]:
    """Describe each role's model with price and time limit, and what is sent to them."""
    settings, choice = run_options.settings, run_options.choice
    for role, model in settings.models.items():
        effort = "" if model.effort is None else f", effort {model.effort}"
        endpoint = "" if model.base_url is None else f" at {plain(model.base_url, 200)}"
        limit = f", at most {choice.config(role).timeout_s:g} s per call"
        name = model.model or "default model"
        yield f"{role:<9} {name} through {model.backend}{endpoint}{effort}{_price(model)}{limit}"
    if not settings.models:
        return
    sent = ["the env", "configs, figures, losses and summaries of the rounds", "cores, memory and GPU of this machine"]
    sent += ["the editable modules"] if "coder" in settings.models and settings.open_modules else []
    sent += ["what its tools read: rounds, code of rounds, notes"] if "ideator" in settings.models else []
    sent += [f"notes of earlier runs from {settings.memory}"] if settings.memory else []
    text = f"{'; '.join(sent)}; never the secret or shots of the verification"
    yield f"sent      {'nothing: the answers come from the cassette' if settings.cassette else text}"
    yield f"limit     calls of a round take at most {round_timeout_s():g} s"
    if not settings.budget.keys() & set(LLM_LIMITS):
        yield "limit     none in dollars or tokens; --budget usd=DOLLARS or tokens=COUNT sets one"


def _check_new_run(run_options: RunOptions, out: Output) -> dict[str, Any]:
    assert run_options.env is not None  # a run is either new or resumed
    with LiveView(console(err=True), quiet=out.quiet) as view:
        start = loop.check_start(
            run_options.env,
            run_options.root,
            run_options.profile,
            pins=run_options.pins,
            secret_file=run_options.secret_file,
            trained_here=run_options.cluster is None,
            on_event=view,
        )
    out.say(f"env       {start.env.name} ({run_options.env})")
    out.say(f"baseline  {start.baseline[:12]} of {start.repo.root}")
    _say_notes(start.notes, out)
    return {"env": start.env.dump(), "baseline": start.baseline, "notes": list(start.notes)}


def _check_resumed_run(run_options: RunOptions, out: Output) -> dict[str, Any]:
    """Check what a resume checks: repository, run directory, lock, and what recovery would do."""
    assert run_options.layout is not None
    with LiveView(console(err=True), quiet=out.quiet) as view:
        start = loop.check_resume(
            run_options.layout.run_id,
            run_options.root,
            run_options.recorded,
            trained_here=run_options.cluster is None,
            on_event=view,
        )
    run_lock.require_unlocked(start.layout.root)
    detached.require_free(start.layout)
    actions = [action.describe() for action in reconcile(start.layout, start.repo, dry_run=True)]
    out.say(f"resume    {start.info.run_id}")
    out.say(f"env       {start.env.name}")
    out.say(f"baseline  {start.info.baseline_sha[:12]} of {start.repo.root}")
    _say_notes(start.notes, out)
    for action in actions:
        out.say(f"recovery  {plain(action, 600)}")
    return {"resume": start.info.run_id, "notes": list(start.notes), "recovery": actions}


def _say_notes(notes: Iterable[str], out: Output) -> None:
    for note in notes:
        out.say(f"note      {note}")


def _plan_lines(run_options: RunOptions) -> Iterator[str]:
    """Describe rounds, pins, jobs, models and limits, one per line."""
    rounds = "until the budget is used up" if run_options.rounds is None else str(run_options.rounds)
    yield (
        f"rounds    {rounds}, {run_options.parallel} at a time, proposed by "
        f"{run_options.choice.ideator}, seed {run_options.seed}"
    )
    if run_options.n_edges is not None:
        yield (
            f"scale     {run_options.scale:g}, for a matching graph of {run_options.n_edges:,} edges; "
            "--scale sets another one"
        )
    elif run_options.scale != 1:
        yield f"scale     {run_options.scale:g}"
    if run_options.pins:
        yield f"pinned    {format_pins(run_options.pins)}, in every proposal"
    yield from _job_lines(run_options)
    yield from _model_lines(run_options)
    if run_options.settings.budget:
        limits = ", ".join(f"{name} {value:g}" for name, value in run_options.settings.budget.items())
        yield f"budget    {limits}"


def _job_lines(run_options: RunOptions) -> Iterator[str]:
    """Describe the SLURM jobs of rounds, and of a detached run."""

    def joined(options: Mapping[str, str]) -> str:
        return ", ".join(f"{key}={value}" for key, value in options.items())

    if run_options.cluster is not None:
        yield f"job       {joined(run_options.cluster)}; one per round"
    if run_options.orchestrator is not None:
        yield f"detached  {joined(run_options.orchestrator)}; this job runs the search"


def detach_run(run_options: RunOptions, out: Output) -> None:
    """Start or resume a run whose rounds run in a SLURM job, and say how to follow and to stop it."""
    assert run_options.orchestrator is not None
    view = LiveView(console(err=out.json), quiet=out.quiet)
    on_event = broadcast(view, out)

    def roles(context: RunContext) -> loop.Roles:
        return build_roles(run_options.choice, context, on_event, run_options.budget)[0]

    with open_run(run_options, roles, on_event, sys.argv) as run:
        for note in run.notes:
            out.note(note)
        layout = run.layout
    exported = model_access.exported_variables(run_options.settings)
    job_id = detached.start(layout, run_options.orchestrator, exported)
    out.say(f"Run {layout.run_id} is detached: SLURM job {job_id} runs it.")
    out.say(f"Watch: autoqec watch {layout.run_id}")
    out.say(f"Stop:  autoqec stop {layout.run_id}")
    out.emit({"event": "run_detached", "run_id": layout.run_id, "job": job_id, "log": str(layout.detached_logs)})


def continue_detached(run_id: str, parse: Callable[[], RunOptions], out: Output) -> int:
    """Run rounds of a detached run in its job; return the exit status."""
    return detached.continue_run(locate.run_layout(run_id), lambda began: _execute(parse(), out, began))


def execute_run(run_options: RunOptions, out: Output) -> int:
    """Run the rounds, show their progress and the summary; return the exit status."""
    return _execute(run_options, out)[1]


def _execute(
    run_options: RunOptions, out: Output, detached_since: datetime | None = None
) -> tuple[loop.LoopResult, int]:
    target = console(err=out.json)
    with LiveView(target, quiet=out.quiet) as view:

        def on_open(run: loop.Run) -> None:
            view.dashboard = Dashboard(run.layout)
            for note in run.notes:
                out.note(note)

        session = run_session(
            run_options, broadcast(view, out), on_open=on_open, command_line=sys.argv, detached_since=detached_since
        )
    report, outcome = run_report.load(session.layout), session.outcome
    if session.learned:
        out.note(f"{pluralize(session.learned, 'round')} added to {run_options.choice.memory}")
    print_summary(target, report)
    for model in session.unusable_models:
        out.note(f"Language model {plain(model, 600)}")
    out.note(f"Stopped: {outcome.stop_reason}")
    if outcome.interrupted:
        out.note(f"Resume: autoqec run --resume {session.layout.run_id}")
    out.emit(
        {
            "event": "run_finished",
            "stopped": outcome.stop_reason,
            "unusable_models": session.unusable_models,
            **report.dump(),
        }
    )
    if outcome.interrupted:
        return outcome, RunInterruptedError.exit_code
    has_result = any(row.status == "ok" for row in outcome.rows or report.rows)
    return outcome, 0 if has_result and not session.unusable_models else 1
