"""Real rounds: every strategy and seed is a run in a workspace of its own, trained and verified.

A run is scored by what a user would take from it: after each round the one with the largest gain on validation shots,
measured on fresh shots that are the same for all runs. The cost of a round is the CPU time of its proposal, screens,
training and validation, which the load of the machine changes less than elapsed time. Verification does not count.
"""

from __future__ import annotations

import math
import re
import resource
import shutil
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec import locate
from autoqec.contracts.base import sha256_json
from autoqec.contracts.events import Event, OnEvent, RoundMeasured, RoundRecorded, RunOpened
from autoqec.contracts.profiles import ProfileName
from autoqec.decoders import family
from autoqec.errors import RunInterruptedError, UsageError
from autoqec.extensions.language_models.plugin import ROLES
from autoqec.orchestrator.checkpoints import open_checkpoint
from autoqec.orchestrator.plugin_protocols import SEARCHES
from autoqec.orchestrator.run_checks import check
from autoqec.orchestrator.run_options import request_run
from autoqec.orchestrator.session import run_session
from autoqec.reporting import run_report
from autoqec.reporting.proposals import proposed_by_model
from autoqec.reporting.run_report import RunReport
from autoqec.store import jsonl
from autoqec.store.files import load_env
from autoqec.store.layout import RunLayout
from benchmarks.ideators.simulation import SimulatedRun

IDEATOR_OF = {**{name: name for name in (*SEARCHES, "policy")}, "llm": "llm", "hybrid:llm": "hybrid"}
MEASURED = "measured.jsonl"  # costs and effects of the rounds below a directory, so that none is measured twice


@dataclass(frozen=True)
class RealRounds:
    """Runs that are compared.

    Attributes:
        directory: Holds a workspace per strategy and seed, and what was measured; continued if it exists.
        env: Env file of new workspaces.
        profile: Profile of the rounds.
        scale: Factor on its training and verification.
        rounds: Rounds per run.
        seeds: Runs per strategy.
        test_shots: Fresh shots on which the best round so far is scored.
        model: Language model of `llm` and `hybrid:llm`.
        budget: Limits of the calls of one run, as in `autoqec run --budget`.
    """

    directory: Path
    env: Path
    profile: ProfileName
    scale: float
    rounds: int
    seeds: int
    test_shots: int
    model: str | None = None
    budget: str = ""

    def workspace(self, strategy: str, seed: int) -> Path:
        """Return the workspace of a run."""
        of_model = f" {self.model} {sha256_json(self.model)[:8]}" if uses_model(strategy) else ""
        name = re.sub(r"[^a-z0-9]+", "-", f"{strategy}{of_model}".lower())
        return self.directory / f"{name}-seed{seed}"


class CostMeter:
    """Appends the CPU seconds of every round of a run to a file.

    Args:
        path: The file.
        workspace: Name of the workspace, by which the lines are found again.
    """

    def __init__(self, path: Path, workspace: str) -> None:
        self._path, self._workspace = path, workspace
        self._start, self._measured = cpu_seconds(), set[int]()

    def __call__(self, event: Event) -> None:
        """Handle an event of the run."""
        if isinstance(event, RoundMeasured) or (isinstance(event, RoundRecorded) and event.round not in self._measured):
            self._measured.add(event.round)
            spent = round(cpu_seconds() - self._start, 3)
            jsonl.append(self._path, {"workspace": self._workspace, "round": event.round, "cpu_s": spent})
        if isinstance(event, RoundRecorded | RunOpened):
            self._start = cpu_seconds()


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def uses_model(strategy: str) -> bool:
    """Return whether a strategy calls a language model."""
    return IDEATOR_OF.get(strategy) in ROLES


def run_all(
    plan: RealRounds, strategies: Sequence[str], make_workspace: Callable[[Path, Path], object], on_event: OnEvent
) -> dict[str, list[SimulatedRun]]:
    """Run what is missing of every strategy and seed, one round at a time, and score all runs.

    Seeds are completed one after another, so that an interrupted comparison has whole pairs.

    Args:
        plan: What is run.
        strategies: Names in `IDEATOR_OF`.
        make_workspace: Creates a workspace from directory and env file.
        on_event: Called with every event.

    Raises:
        UsageError: A strategy is unknown, or a run of the directory has other settings.
        RunInterruptedError: Interrupted; the same call continues.
    """
    for name in strategies:
        if name not in IDEATOR_OF:
            hint = f"one of {', '.join(IDEATOR_OF)}"
            raise UsageError(f"unknown strategy {name!r}", location="--strategies", hint=hint)
    if plan.model is None and any(map(uses_model, strategies)):
        raise UsageError("is missing", location="--model", hint="a strategy calls a language model")
    if (plan.model or plan.budget) and not any(map(uses_model, strategies)):
        raise UsageError("no strategy calls a language model", location="--model", hint="--strategies llm,tpe")
    runs: dict[str, list[SimulatedRun]] = {name: [] for name in strategies}
    for seed in range(1, plan.seeds + 1):
        for name in strategies:
            report = _completed(plan, name, seed, make_workspace, on_event)
            runs[name].append(_scored(plan, name, report, plan.workspace(name, seed).name))
    return runs


def _completed(
    plan: RealRounds, strategy: str, seed: int, make_workspace: Callable[[Path, Path], object], on_event: OnEvent
) -> RunReport:
    """Return a run with all its rounds; start or resume it if it has fewer."""
    workspace = plan.workspace(strategy, seed)
    if not workspace.exists():
        unfinished = workspace.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        make_workspace(unfinished, plan.env)
        unfinished.rename(workspace)
    named: dict[str, Any] = {
        "rounds": plan.rounds, "profile": plan.profile, "scale": plan.scale, "seed": seed,
        "ideator": IDEATOR_OF[strategy],
    }  # fmt: skip
    if uses_model(strategy):
        named |= {"model": plan.model, "budget": plan.budget}
    with chdir(workspace):
        run = next(iter(locate.run_ids(workspace)), None)
        report = None if run is None else run_report.load(RunLayout(workspace, run))
        if report is not None:
            _require_same_settings(plan, report, workspace, seed)
            if len(report.finished_rows) >= plan.rounds:
                return report
        checked = check(request_run(None if run else "env.yaml", named, run), on_event)
        meter = CostMeter(plan.directory / MEASURED, workspace.name)

        def listen(event: Event) -> None:
            meter(event)
            on_event(event)

        session = run_session(checked, listen)
    if session.unusable_models:
        hint = f"remove {workspace}, and repeat with a model that answers"
        raise UsageError(session.unusable_models[0], location="--model", hint=hint)
    report = run_report.load(session.layout)
    if len(report.finished_rows) < plan.rounds:
        hint = "the same command continues"
        raise RunInterruptedError(f"ended early: {session.outcome.stop_reason}", location=str(workspace), hint=hint)
    return report


def _require_same_settings(plan: RealRounds, report: RunReport, workspace: Path, seed: int) -> None:
    """Raise UsageError if a run of the directory has another env, profile, scale or seed than the comparison."""
    env, stored = (load_env(path)[0] for path in (plan.env, report.layout.env))
    wanted = {"env": env.name, "noise": env.noise, "profile": plan.profile, "scale": plan.scale, "seed": seed}
    info = report.info
    has = {"env": stored.name, "noise": stored.noise, "profile": info.profile, "scale": info.scale, "seed": info.seed}
    different = [name for name, value in wanted.items() if has[name] != value]
    if different:
        message = f"the run has another {' and '.join(different)}"
        raise UsageError(message, location=str(workspace), hint="give --train another directory")


def _scored(plan: RealRounds, strategy: str, report: RunReport, workspace: str) -> SimulatedRun:
    """Return the gain of the best round so far, and the cost, after every round."""
    cpu_s, gains = _measured(plan, workspace)
    run, best, best_delta = SimulatedRun(), None, 0.0
    usage = report.llm_usage
    dollars = 0.0 if usage is None else math.nan if usage["cost_usd"] is None else usage["cost_usd"]
    for row in report.finished_rows[: plan.rounds]:
        if row.status == "ok" and (row.delta_ler or 0.0) > best_delta:
            best, best_delta = row.round, row.delta_ler or 0.0
        if best is not None and best not in gains:
            gains[best] = _measure_gain(plan, report.layout, best, workspace)
        run.hypervolume.append(0.0 if best is None else gains[best])
        recorded_s = (row.train_wallclock_s or 0.0) + (row.eval_wallclock_s or 0.0)  # if a crash lost the line
        run.seconds.append(cpu_s.get(row.round, recorded_s) + (run.seconds[-1] if run.seconds else 0.0))
        run.dollars.append(dollars)
        run.verified += row.verify_verdict == "VERIFIED"
        own = strategy != "llm" or proposed_by_model([row]) > 0
        run.built += own and row.status != "compile_error"
    run.elapsed = list(run.seconds)
    return run


def _measured(plan: RealRounds, workspace: str) -> tuple[dict[int, float], dict[int, float]]:
    """Return the CPU seconds of the rounds of a run, and the gains that were measured on as many shots as now."""
    lines = [line for line in jsonl.read(plan.directory / MEASURED) if line["workspace"] == workspace]
    # A resumed process may add a line for a round that was measured before it started: the first line counts.
    cpu_s = {line["round"]: line["cpu_s"] for line in reversed(lines) if "cpu_s" in line}
    return cpu_s, {line["round"]: line["gain"] for line in lines if line.get("shots") == plan.test_shots}


def _measure_gain(plan: RealRounds, layout: RunLayout, number: int, workspace: str) -> float:
    """Return by what share a round's decoder reduces the failures of the inner decoder on fresh shots."""
    with open_checkpoint(layout.round(number).dir, None, unverified=True) as checkpoint:
        env, path = checkpoint.env, checkpoint.path
        (member,) = family.evaluate_members(env, path, [family.target_member(env)], shots=plan.test_shots, seed=0)
    gain = member.effects[0].relative or 0.0
    line = {"workspace": workspace, "round": number, "shots": plan.test_shots, "gain": gain}
    jsonl.append(plan.directory / MEASURED, line)
    return gain
