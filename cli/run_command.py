"""What `autoqec run` does once it is parsed: understand, show the plan, or go and tell."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoqec.cli import build_roles, paths
from autoqec.cli.common import INTERRUPTED, Out
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.history import RunInfo
from autoqec.contracts.pins import told
from autoqec.contracts.profiles import PROFILES, ProfileName
from autoqec.errors import InputError, Interrupted
from autoqec.orchestrator import loop
from autoqec.orchestrator.executors.slurm import Slurm, filled
from autoqec.reporting import run_view
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.live_status import LiveFile, Plan
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView, console
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import sandbox, slurm

ROUNDS = 3  # where nothing else limits
Tell = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Order:
    """What is to be done. Of a run that goes on, `info` says how it began, and `env` is None."""

    root: Path
    env: Path | None
    layout: RunLayout | None
    info: RunInfo | None
    profile: ProfileName
    seed: int
    secret_file: Path | None
    choice: build_roles.Choice
    pins: dict[str, Any]
    rounds: int | None
    budget: loop.Budget
    parallel: int
    threads: int
    cluster: dict[str, str] | None

    @property
    def round_threads(self) -> int:
        """What one round's child gets: its share, where several are on one machine."""
        return self.threads if self.cluster is not None else max(1, self.threads // self.parallel)

    @property
    def executor(self) -> loop.Executor | None:
        """Where rounds are measured; None: here."""
        return None if self.cluster is None else Slurm(self.parallel, self.cluster)


def understood(env_name: str | None, explicit: set[str], **chosen: Any) -> Order:
    """The order that a command line means. Raises InputError before anything is written."""
    root = paths.lab_root()
    budget, money = build_roles.split_budget(chosen["budget"])
    pins = build_roles.pins_of(chosen["pin"])
    layout = paths.run_layout(chosen["resume"], root=root) if chosen["resume"] else None
    info = History(layout).info() if layout else None
    if info is not None:
        _same_as_before(info, env_name, {name: chosen[name] for name in explicit}, pins)
    elif env_name is None:
        raise InputError("is missing", where="ENV", mend="autoqec envs; then autoqec run NAME")
    choice = build_roles.Choice(
        ideator=info.ideator if info else chosen["ideator"],
        model=chosen["model"],
        cassette=chosen["cassette"],
        replay_of=chosen["replay_of"],
        max_usd=money.get("usd"),
        max_tokens=int(money["tokens"]) if "tokens" in money else None,
        open_surface=chosen["open_surface"],
        ideator_memory=chosen["ideator_memory"],
        analyst_memory=chosen["analyst_memory"],
        memory=chosen["memory"],
    )
    if chosen["no_llm"] and choice.models:
        raise InputError(f"ideator `{choice.ideator}` asks a language model", where="--no-llm", mend="--ideator tpe")
    build_roles.check(choice, root)
    profile = info.profile if info else chosen["profile"]
    return Order(
        root=root,
        env=None if info else paths.env_file(str(env_name)),
        layout=layout,
        info=info,
        profile=profile,
        seed=info.seed if info else chosen["seed"],
        secret_file=chosen["secret_file"],
        choice=choice,
        pins=dict(info.pins) if info else pins,
        rounds=chosen["rounds"] or (None if chosen["budget"] else ROUNDS),
        budget=budget,
        parallel=chosen["parallel"],
        threads=chosen["threads"],
        cluster=_cluster(chosen["executor"], chosen["slurm"], profile, chosen["threads"]),
    )


def _cluster(executor: str, options: tuple[str, ...], profile: ProfileName, threads: int) -> dict[str, str] | None:
    """The options of a round's job, which SLURM would take; None where rounds are measured here."""
    if executor == "local":
        if options:
            raise InputError("belongs to --executor slurm", where="--slurm", mend="add --executor slurm")
        return None
    asked = filled(slurm.parse(options), PROFILES[profile], threads)
    slurm.check(asked)
    return asked


def _same_as_before(info: RunInfo, env_name: str | None, named: dict[str, Any], pins: dict[str, Any]) -> None:
    """A run keeps what it began with: naming it again is fine, naming something else is not."""
    mend = f"autoqec run --resume {info.run_id}"
    for name in ("profile", "seed", "ideator"):
        was = getattr(info, name)
        if named.get(name, was) != was:
            raise InputError(f"the run began with {was}", where=f"--{name} {named[name]}", mend=mend)
    if pins and pins != info.pins:
        raise InputError(f"the run began with {told(info.pins) or 'no pins'}", where=f"--pin {told(pins)}", mend=mend)
    if "secret_file" in named:
        raise InputError("the run has its secret already", where="--secret-file", mend=mend)
    if env_name is not None:
        path = paths.env_file(env_name)
        if sha256_bytes(load_env(path)[1].encode()) != info.env_yaml_sha256:
            raise InputError("is not the env that the run began with", where=str(path), mend=mend)


def show_plan(order: Order, out: Out) -> None:
    """What the order would do, after every check that a start makes; writes nothing."""
    profile = PROFILES[order.profile].dump()
    if order.env is not None:
        start = loop.check_start(order.env, order.root, order.profile, secret_file=order.secret_file)
        out.say(f"env       {start.env.name} ({order.env})")
        out.say(f"baseline  {start.baseline[:12]} of {start.repo.root}")
        for note in start.notes:
            out.say(f"note      {note}")
        base = {"env": start.env.dump(), "baseline": start.baseline, "notes": list(start.notes)}
    else:
        assert order.layout is not None  # an order has one or the other
        out.say(f"resume    {order.layout.run_id}")
        base = {"resume": order.layout.run_id}
    rounds = "as the budget allows" if order.rounds is None else str(order.rounds)
    out.say(f"rounds    {rounds}, {order.parallel} at a time, proposed by {order.choice.ideator}, seed {order.seed}")
    if order.pins:
        out.say(f"pinned    {told(order.pins)}, in every proposal")
    if order.cluster is not None:
        out.say(f"job       {', '.join(f'{key}={value}' for key, value in order.cluster.items())}; a round each")
    for key, value in profile.items():
        out.say(f"profile   {key} = {value if isinstance(value, str) else f'{value:,}'}")
    plan = {"rounds": order.rounds, "parallel": order.parallel, "ideator": order.choice.ideator, "seed": order.seed}
    plan["threads"] = order.round_threads
    out.emit({**base, **plan, "pins": order.pins, "profile": profile, "slurm": order.cluster})


def go(order: Order, out: Out) -> int:
    """Run the rounds, show them while they go and what came of them; the exit status."""
    target = console(err=out.json)
    with ExitStack() as stack:
        view = stack.enter_context(LiveView(target, quiet=out.quiet))
        run = stack.enter_context(_opened(order, _tell(view, out)))
        told = stack.enter_context(LiveFile(run.layout, _limits(order)))
        view.dashboard = Dashboard(run.layout)
        tell = _tell(view, out, told)
        tell("run_opened", {"run_id": run.layout.run_id, "root": str(run.layout.root)})
        for note in run.notes:
            out.note(note)
        run.roles, limits = build_roles.speakers(order.choice, run, tell, order.budget)
        try:
            outcome = loop.run_rounds(
                run, order.rounds, tell, budget=limits, parallel=order.parallel, executor=order.executor
            )
        except KeyboardInterrupt as error:
            mend = f"autoqec run --resume {run.layout.run_id}"
            raise Interrupted("stopped in the middle of a round", where=run.layout.run_id, mend=mend) from error
        if learned := build_roles.learn(order.choice, run):
            out.note(f"{learned} rounds learned into {order.choice.memory}")
    shown = run_view.load(run.layout)
    print_summary(target, shown)
    out.note(f"Stopped: {outcome.stopped}")
    if outcome.interrupted:
        out.note(f"Go on: autoqec run --resume {run.layout.run_id}")
    out.emit({"event": "run_finished", "stopped": outcome.stopped, **shown.dump()})
    if outcome.interrupted:
        return INTERRUPTED
    return 0 if any(row.status == "ok" for row in outcome.rows or shown.rows) else 1


def _opened(order: Order, tell: Tell) -> loop.Run:
    stand_in = loop.Roles(lambda view: None)  # the roles proper need the opened run
    if order.layout is not None:
        return loop.resume_run(
            order.layout.run_id, order.root, roles=stand_in, threads=order.round_threads, on_event=tell
        )
    assert order.env is not None  # an order has one or the other
    return loop.start_run(
        order.env,
        order.root,
        order.profile,
        order.seed,
        order.choice.ideator,
        secret_file=order.secret_file,
        roles=stand_in,
        threads=order.round_threads,
        pins=order.pins,
        command_line=tuple(sys.argv),
    )


def _limits(order: Order) -> Plan:
    """What ends this start of the run, for whoever watches it."""
    limits = asdict(order.budget)
    rounds = [number for number in (order.rounds, limits.pop("rounds")) if number is not None]
    return Plan(
        **limits,
        rounds=min(rounds, default=None),
        usd=order.choice.max_usd,
        tokens=order.choice.max_tokens,
        parallel=order.parallel,
        began=time.time(),
        sandbox=sandbox.probe(),
    )


def _tell(view: LiveView, out: Out, *others: Tell) -> Tell:
    listeners: list[Tell] = [*others, view]

    def tell(kind: str, payload: dict[str, Any]) -> None:
        for listener in listeners:
            listener(kind, payload)
        out.emit({"event": kind, **payload})

    return tell
