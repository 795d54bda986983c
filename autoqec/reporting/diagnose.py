"""Diagnoses why a round failed or had no effect, and suggests the config to try instead.

Reads metrics.json, config.yaml, train.log, progress.csv and the run's env; needs no language model.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.round import FailureCause, RoundMetrics
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.qec.stats import validation_effect
from autoqec.reporting import advice
from autoqec.reporting.advice import adopt_command
from autoqec.reporting.loss import loss_drops
from autoqec.store import atomic, files
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout
from autoqec.store.round_files import load_config, read_contract

Cause = FailureCause | Literal["env broken", "does harm", "no effect", "conflict", "aborted", "none"]


@dataclass(frozen=True)
class RoundDiagnosis:
    """Diagnosis of one round, or of the env (round: None).

    Attributes:
        cause: What kind of failure it is.
        what: The failure in one sentence.
        advice: What to do about it.
        see: Files to look at.
        change: Suggested change as {dotted key: [old, new]}.
        config: The whole suggested config.
    """

    round: int | None
    status: str
    cause: Cause
    what: str
    advice: str
    see: tuple[str, ...] = ()
    change: dict[str, list[Any]] | None = None
    config: dict[str, Any] | None = None

    def dump(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self)


def diagnose_run(layout: RunLayout) -> list[RoundDiagnosis]:
    """Diagnose every round that failed or had no effect; only the env if that is damaged.

    Raises:
        UsageError: There is no such run.
    """
    history = History(layout)
    info, rounds = history.info(), history.state().rounds.values()
    env_yaml = _text(layout.env)
    problem = _env_problem(env_yaml, info.env_yaml_sha256)
    if problem is not None:
        restore = "restore env.yaml from its commit or archive; run.json holds its hash"
        see = tuple(str(path) for path in (layout.env, layout.run_info) if path.exists())
        return [RoundDiagnosis(None, "paused", "env broken", problem, restore, see)]
    diagnoses = []
    for attempt in rounds:
        row = attempt.row
        if row.status == "orphaned_branch":
            command, see = adopt_command(layout, (attempt,)), (str(layout.history),)
            diagnoses.append(RoundDiagnosis(row.round, row.status, "aborted", row.status_reason or "", command, see))
        elif row.status == "compose_conflict":
            message = f"the branches do not merge; both changed {', '.join(row.conflicting_files or ())}"
            other = "compose branches that changed different keys"
            diagnoses.append(RoundDiagnosis(row.round, row.status, "conflict", message, other))
        else:
            diagnoses.append(diagnose_round(layout.round(row.round), env_yaml, row, info.profile))
    return [diagnosis for diagnosis in diagnoses if diagnosis.cause != "none"]


def diagnose_round(
    layout: RoundLayout,
    env_yaml: str | None = None,
    metrics: RoundMetrics | None = None,
    profile: str | None = None,
) -> RoundDiagnosis:
    """Diagnose one round directory.

    Args:
        layout: The round.
        env_yaml: Text of the run's env; without it neither env nor cost limits are checked.
        metrics: The round's metrics, if its row holds them; else metrics.json is read.
        profile: The run's profile, if it is known.
    """
    metrics = metrics or _metrics(layout)
    config = load_config(layout.config)
    if metrics.status == "ok":
        diagnosis = _diagnose_measured(metrics, layout, config, _backend(env_yaml), profile)
    else:
        diagnosis = _diagnose_failed(metrics, layout, config, env_yaml)
    change, patched = advice.suggest_config(diagnosis.cause, config, _phase(layout), env_yaml)
    if patched is None:
        return diagnosis
    return replace(diagnosis, change=change, config=patched)


def _diagnose_failed(
    metrics: RoundMetrics, layout: RoundLayout, config: dict[str, Any] | None, env_yaml: str | None
) -> RoundDiagnosis:
    reason = " ".join((metrics.status_reason or "").split())

    def diagnosis(cause: Cause, change: str, *see: Path, what: str = reason) -> RoundDiagnosis:
        paths = tuple(str(path) for path in (*see, layout.metrics) if path.exists())
        return RoundDiagnosis(layout.round, metrics.status, cause, what, change, paths)

    if env_yaml is not None and metrics.status == "compile_error":
        problem = _why_unbuildable(env_yaml)
        if problem is not None:
            return diagnosis("env broken", "fix the env file and start a new run with it", what=problem)
    cause = metrics.failure_cause or "crash"
    if cause == "bad config":
        problems = advice.config_problems(config) if config is not None else []  # a rejected proposal left no config
        return diagnosis(cause, "; ".join(problems) or "propose a config that is valid", layout.config)
    if cause == "not finite":
        return diagnosis(cause, f"use a smaller learning rate for {_phase(layout)}", layout.train_log, layout.config)
    logs = () if cause in _BEFORE_TRAINING else (layout.train_log,)
    return diagnosis(cause, _ADVICE[cause], *(() if cause == "crash" else (layout.config,)), *logs)


_BEFORE_TRAINING = ("cost limit", "too slow", "out of memory", "module code", "does not fit")
_ADVICE: dict[FailureCause, str] = {
    "cost limit": "use a smaller network, or raise the limit in the env's `constraints`",
    "too slow": "let fewer shots reach the network with a lower `gate`, then use a smaller network; or raise "
    "`constraints.max_time_ratio` of the env",
    "out of memory": "use smaller batches, then a smaller network",
    "time limit": "use a smaller network or larger batches; on a busy machine a normal round may exceed the limit, too",
    "disk limit": "the editable modules write too much data",
    "process limit": "the editable modules start processes",
    "module code": "fix the named line of the editable module on the branch of the round",
    "does not fit": "the config is valid but does not fit this env or the parent",
    "no sandbox": "install a sandbox; `autoqec doctor` says how",
    "crash": "repeat the round with `autoqec run-round`; it is deterministic",
}


def _diagnose_measured(
    metrics: RoundMetrics, layout: RoundLayout, config: dict[str, Any] | None, backend: str, profile: str | None
) -> RoundDiagnosis:
    """Diagnose a measured round: harmful, without effect, or fine."""
    effect, drops = validation_effect(metrics), loss_drops(layout)
    see = tuple(str(path) for path in (layout.metrics, layout.train_log) if path.exists())
    loss_text = "".join(f"; the loss of {phase} fell by {100 * drop:.0f}%" for phase, drop in drops.items())
    if effect is None or effect.delta_low > 0:
        return RoundDiagnosis(layout.round, "ok", "none", "the round has an effect", "")
    effect_text = f"delta {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}] per shot{loss_text}"
    counts = f"{effect.counts.fixed} shots fixed, {effect.counts.broken} broken"
    if not effect.counts.fixed and not effect.counts.broken:
        counts = "the network changed the outcome of no shot"
    if effect.delta_high < 0:
        harm = advice.after_harm(config)
        return RoundDiagnosis(layout.round, "ok", "does harm", f"{effect_text}: {counts}", harm, see)
    change = advice.without_effect(config, backend, profile)
    return RoundDiagnosis(layout.round, "ok", "no effect", f"{effect_text}: {counts}", change, see)


def _backend(env_yaml: str | None) -> str:
    """Return the inner decoder of the env; matching if it is not known."""
    try:
        return files.parse_env(env_yaml or "", location="env").backend
    except (AutoqecError, ValueError):
        return "mwpm"


def _env_problem(text: str | None, recorded: str) -> str | None:
    if text is None:
        return "env.yaml is missing or cannot be read"
    if sha256_bytes(text.encode()) != recorded:
        return "env.yaml has changed since the run was started: its hash differs from the one in run.json"
    return _why_unbuildable(text)


def _why_unbuildable(env_yaml: str) -> str | None:
    """Return why no decoding problem can be built from the env; None if it can."""
    from autoqec.qec.problem import Problem

    try:
        Problem.from_env(files.parse_env(env_yaml, location="env"))
    except (AutoqecError, ValueError, MemoryError) as error:
        return str(error)
    return None


def _metrics(layout: RoundLayout) -> RoundMetrics:
    try:
        metrics = read_contract(layout.metrics, RoundMetrics)
    except (OSError, ContractError) as error:
        raise UsageError(f"metrics.json cannot be read: {error}", location=str(layout.dir)) from error
    if metrics is None:
        raise UsageError("has no metrics.json", location=str(layout.dir), hint="name a round directory")
    return metrics


def _phase(layout: RoundLayout) -> str:
    """Phase in which the round ended: `training` or `finetuning`."""
    text = _text(layout.progress)
    rows: Iterable[dict[str, Any]] = csv.DictReader((text or "").splitlines())
    last = [row.get("Phase") for row in rows][-1:]
    return "finetuning" if last == ["finetuning"] else "training"


def _text(path: Path) -> str | None:
    try:
        return atomic.read_bytes(path).decode()
    except (OSError, ValueError):
        return None
