"""What `autoqec run` does once it is parsed: understand, show the plan, or go and tell."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoqec.cli import build_roles, paths, run_settings
from autoqec.cli.common import Output
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.events import Event, OnEvent, RunOpened
from autoqec.contracts.history import RunInfo
from autoqec.contracts.pins import apply_pins, format_pins
from autoqec.contracts.profiles import PROFILES, ProfileName
from autoqec.contracts.settings import RunSettings
from autoqec.errors import RunInterruptedError, UsageError
from autoqec.orchestrator import loop
from autoqec.orchestrator.executors.slurm import SlurmExecutor, fill_job_options
from autoqec.orchestrator.run import RolesFactory, RunContext
from autoqec.reporting import run_report
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.live_status import LiveStatusWriter, RunLimits
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView, console
from autoqec.runner.devices import require_available
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import sandbox, slurm


@dataclass(frozen=True)
class RunOptions:
    """What is to be done. Of a run that goes on, `info` says how it began, and `env` is None."""

    root: Path
    env: Path | None
    layout: RunLayout | None
    info: RunInfo | None
    profile: ProfileName
    seed: int
    secret_file: Path | None
    choice: build_roles.RoleOptions
    pins: dict[str, Any]
    settings: RunSettings
    cluster: dict[str, str] | None

    @property
    def rounds(self) -> int | None:
        """Finished rounds at which the run ends; None: other limits end it."""
        return self.settings.rounds

    @property
    def budget(self) -> loop.Budget:
        """Limits of the loop."""
        return run_settings.loop_budget(self.settings)

    @property
    def parallel(self) -> int:
        """Rounds measured at once."""
        return self.settings.parallel

    @property
    def round_threads(self) -> int:
        """What one round's child gets: its share, where several are on one machine."""
        threads = self.settings.threads
        return threads if self.cluster is not None else max(1, threads // self.parallel)

    @property
    def executor(self) -> loop.Executor | None:
        """Where rounds are measured; None: here."""
        return None if self.cluster is None else SlurmExecutor(self.parallel, self.cluster)


def parse_run_options(env_name: str | None, explicit: set[str], **chosen: Any) -> RunOptions:
    """The order that a command line means. Raises UsageError before anything is written."""
    root = paths.workspace_root()
    build_roles.split_budget(chosen["budget"])
    pins = build_roles.pins_of(chosen["pin"])
    layout = paths.run_layout(chosen["resume"], root=root) if chosen["resume"] else None
    info = History(layout).info() if layout else None
    if info is not None:
        _check_resume_options(info, env_name, {name: chosen[name] for name in explicit}, pins)
    elif env_name is None:
        raise UsageError("is missing", location="ENV", hint="autoqec envs; then autoqec run NAME")
    settings = run_settings.resolve_settings(info, explicit, chosen, root)
    ideator = info.ideator if info else chosen["ideator"]
    choice = run_settings.role_options(settings, ideator, info, layout, explicit, chosen, root)
    if chosen["no_llm"] and choice.models:
        raise UsageError(f"ideator `{choice.ideator}` asks a language model", location="--no-llm", hint="--ideator tpe")
    build_roles.check(choice, root)
    held = dict(info.pins) if info else pins
    if settings.executor == "local":
        _check_gpus(held)
    profile = info.profile if info else chosen["profile"]
    return RunOptions(
        root=root,
        env=None if info else paths.env_file(str(env_name)),
        layout=layout,
        info=info,
        profile=profile,
        seed=info.seed if info else chosen["seed"],
        secret_file=chosen["secret_file"],
        choice=choice,
        pins=held,
        settings=run_settings.with_models(settings, choice),
        cluster=_slurm_options(settings.executor, settings.slurm, profile, settings.threads),
    )


def _check_gpus(pins: dict[str, Any]) -> None:
    """Refuse pins that ask for GPUs which this machine does not have; every round would fail."""
    if pins:
        require_available(parse_dsl(apply_pins({"type": "mlp", "mlp": {}}, pins)).training)


def _slurm_options(
    executor: str, options: tuple[str, ...], profile: ProfileName, threads: int
) -> dict[str, str] | None:
    """The options of a round's job, which SLURM would take; None where rounds are measured here."""
    if executor == "local":
        if options:
            raise UsageError("belongs to --executor slurm", location="--slurm", hint="add --executor slurm")
        return None
    job_options = fill_job_options(slurm.parse_options(options), PROFILES[profile], threads)
    slurm.check(job_options)
    return job_options


def _check_resume_options(info: RunInfo, env_name: str | None, named: dict[str, Any], pins: dict[str, Any]) -> None:
    """A run keeps what it began with: naming it again is fine, naming something else is not."""
    hint = f"autoqec run --resume {info.run_id}"
    for name in ("profile", "seed", "ideator"):
        was = getattr(info, name)
        if named.get(name, was) != was:
            raise UsageError(f"the run began with {was}", location=f"--{name} {named[name]}", hint=hint)
    if pins and pins != info.pins:
        raise UsageError(
            f"the run began with {format_pins(info.pins) or 'no pins'}",
            location=f"--pin {format_pins(pins)}",
            hint=hint,
        )
    if "secret_file" in named:
        raise UsageError("the run has its secret already", location="--secret-file", hint=hint)
    if env_name is not None:
        path = paths.env_file(env_name)
        if sha256_bytes(load_env(path)[1].encode()) != info.env_yaml_sha256:
            raise UsageError("is not the env that the run began with", location=str(path), hint=hint)


def show_plan(run_options: RunOptions, out: Output) -> None:
    """What the order would do, after every check that a start makes; writes nothing."""
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
        assert run_options.layout is not None  # an order has one or the other
        out.say(f"resume    {run_options.layout.run_id}")
        base = {"resume": run_options.layout.run_id}
    rounds = "as the budget allows" if run_options.rounds is None else str(run_options.rounds)
    out.say(
        f"rounds    {rounds}, {run_options.parallel} at a time, proposed by "
        f"{run_options.choice.ideator}, seed {run_options.seed}"
    )
    if run_options.pins:
        out.say(f"pinned    {format_pins(run_options.pins)}, in every proposal")
    if run_options.cluster is not None:
        out.say(f"job       {', '.join(f'{key}={value}' for key, value in run_options.cluster.items())}; a round each")
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
    """Run the rounds, show them while they go and what came of them; the exit status."""
    target = console(err=out.json)
    with ExitStack() as stack:
        view = stack.enter_context(LiveView(target, quiet=out.quiet))
        listeners: list[OnEvent] = [view]
        on_event, limits = _broadcast(listeners, out), build_roles.RunBudget()

        def roles(context: RunContext) -> loop.Roles:
            nonlocal limits
            built, limits = build_roles.build_roles(run_options.choice, context, on_event, run_options.budget)
            return built

        run = stack.enter_context(_open_run(run_options, roles, on_event))
        listeners.insert(0, stack.enter_context(LiveStatusWriter(run.layout, _run_limits(run_options))))
        view.dashboard = Dashboard(run.layout)
        on_event(RunOpened(run_id=run.layout.run_id, root=str(run.layout.root)))
        for note in run.notes:
            out.note(note)
        try:
            outcome = loop.run_rounds(
                run,
                run_options.rounds,
                on_event,
                budget=limits,
                parallel=run_options.parallel,
                executor=run_options.executor,
            )
        except KeyboardInterrupt as error:
            hint = f"autoqec run --resume {run.layout.run_id}"
            raise RunInterruptedError(
                "stopped in the middle of a round", location=run.layout.run_id, hint=hint
            ) from error
        if learned := build_roles.learn(run_options.choice, run):
            out.note(f"{learned} rounds learned into {run_options.choice.memory}")
    final_view = run_report.load(run.layout)
    print_summary(target, final_view)
    out.note(f"Stopped: {outcome.stop_reason}")
    if outcome.interrupted:
        out.note(f"Go on: autoqec run --resume {run.layout.run_id}")
    out.emit({"event": "run_finished", "stopped": outcome.stop_reason, **final_view.dump()})
    if outcome.interrupted:
        return RunInterruptedError.exit_code
    return 0 if any(row.status == "ok" for row in outcome.rows or final_view.rows) else 1


def _open_run(run_options: RunOptions, roles: RolesFactory, on_event: OnEvent) -> loop.Run:
    if run_options.layout is not None:
        run = loop.resume_run(
            run_options.layout.run_id,
            run_options.root,
            roles=roles,
            threads=run_options.round_threads,
            on_event=on_event,
        )
        change = run.memory.history.update_settings(run_options.settings)
        if change is not None:
            had_settings, run.info = run.info.settings is not None, run.memory.history.info()
            if had_settings:
                changes = ", ".join(f"{name} = {value}" for name, value in change.changed.items())
                run.notes.append(f"settings of the run changed: {changes}")
        return run
    assert run_options.env is not None  # an order has one or the other
    return loop.start_run(
        run_options.env,
        run_options.root,
        run_options.profile,
        run_options.seed,
        run_options.choice.ideator,
        secret_file=run_options.secret_file,
        roles=roles,
        threads=run_options.round_threads,
        pins=run_options.pins,
        command_line=tuple(sys.argv),
        settings=run_options.settings,
    )


def _run_limits(run_options: RunOptions) -> RunLimits:
    """What ends this start of the run, for whoever watches it."""
    limits = asdict(run_options.budget)
    rounds = [number for number in (run_options.rounds, limits.pop("rounds")) if number is not None]
    return RunLimits(
        **limits,
        rounds=min(rounds, default=None),
        usd=run_options.choice.max_usd,
        tokens=run_options.choice.max_tokens,
        parallel=run_options.parallel,
        began=time.time(),
        sandbox=sandbox.probe(),
    )


def _broadcast(listeners: list[OnEvent], out: Output) -> OnEvent:
    def on_event(event: Event) -> None:
        for listener in listeners:
            listener(event)
        out.emit({"event": event.kind, **event.payload()})

    return on_event
