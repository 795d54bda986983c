"""Why a round ended as it did, and the config to try instead: mechanical, from the round's own files.

Reads metrics.json, config.yaml, train.log, progress.csv and the run's env; needs no language model.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.reporting import predict_cost, suggest_fix
from autoqec.reporting import rows as read
from autoqec.store import train_log
from autoqec.store.files import load_yaml
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout

Cause = Literal[
    "env broken", "bad config", "surface code", "does not fit", "cost limit", "not finite", "out of memory",
    "time limit", "disk limit", "process limit", "crash", "does harm", "no effect", "conflict", "lost", "none",
]  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One round. see: files to look at. change: dotted key -> [old, new]; config: the whole patched config, or None."""

    round: int | None
    status: str
    cause: Cause
    what: str
    advice: str
    see: tuple[str, ...] = ()
    change: dict[str, list[Any]] | None = None
    config: dict[str, Any] | None = None

    def dump(self) -> dict[str, Any]:
        return asdict(self)


def diagnose_run(layout: RunLayout) -> list[Diagnosis]:
    """The env first, where it is broken; then every round that is not well. UsageError where there is no such run."""
    history = History(layout)
    info, rounds = history.info(), history.state().rounds.values()
    env_yaml = _text(layout.env)
    fault = _env_fault(env_yaml, info.env_yaml_sha256)
    if fault is not None:
        mend_it = "restore env.yaml from the commit or archive it came from: its hash stands in run.json"
        return [Diagnosis(None, "paused", "env broken", fault, mend_it, (str(layout.env), str(layout.run_info)))]
    found = []
    for row in (found.row for found in rounds):
        if row.status == "orphaned_branch":
            advice = f"autoqec adopt {info.run_id} {row.round} brings it back, if its branch stands"
            found.append(
                Diagnosis(row.round, row.status, "lost", row.status_reason or "", advice, (str(layout.history),))
            )
        elif row.status == "compose_conflict":
            what = f"the branches do not merge; both changed {', '.join(row.conflicting_files or ())}"
            found.append(Diagnosis(row.round, row.status, "conflict", what, "compose branches that changed other keys"))
        else:
            found.append(diagnose_round(layout.round(row.round), env_yaml))
    return [one for one in found if one.cause != "none"]


def diagnose_round(layout: RoundLayout, env_yaml: str | None = None) -> Diagnosis:
    """One round directory. env_yaml: the frozen env's text; without it costs and the env are not looked into."""
    metrics = _metrics(layout)
    config = _config(layout)
    found = _cause(metrics, layout, config, env_yaml)
    change, patched = suggest_fix.suggest_config(
        found.cause, metrics.status_reason or "", config, _phase(layout), env_yaml
    )
    if patched is None:
        return found
    return replace(found, change=change, config=patched)


def _cause(
    metrics: RoundMetrics, layout: RoundLayout, config: dict[str, Any] | None, env_yaml: str | None
) -> Diagnosis:
    reason = " ".join((metrics.status_reason or "").split())

    def diagnosis(cause: Cause, advice: str, *see: Path, what: str = reason) -> Diagnosis:
        paths = tuple(str(path) for path in (*see, layout.metrics) if path.exists())
        return Diagnosis(layout.round, metrics.status, cause, what, advice, paths)

    if metrics.status == "ok":
        return _diagnose_measured(metrics, layout)
    if env_yaml is not None and metrics.status == "compile_error":
        fault = predict_cost.env_problem(env_yaml)
        if fault is not None:
            return diagnosis(
                "env broken", "mend the env and start a new run: an env is frozen with its run", what=fault
            )
    if "exceeds the env's limit" in reason:
        return diagnosis("cost limit", "a smaller net, or a higher bound in the env's `constraints`", layout.config)
    if "not finite" in reason or any(math.isnan(loss) for loss in train_log.read(layout.train_log).losses[-1:]):
        return diagnosis("not finite", f"a smaller step size while {_phase(layout)}", layout.train_log, layout.config)
    if any(marker in reason.lower() for marker in ("out of memory", "memory ", "alloc")):
        return diagnosis("out of memory", "smaller batches, then a smaller net", layout.config)
    for marker, cause, advice in _LIMITS:
        if reason.startswith(marker):
            return diagnosis(cause, advice, layout.config, layout.train_log)
    if "modules/" in reason:
        return diagnosis(
            "surface code", "mend the named line of the search surface on the round's branch", layout.config
        )
    if suggest_fix.config_problems(config):
        return diagnosis("bad config", "; ".join(suggest_fix.config_problems(config)), layout.config)
    if metrics.status == "compile_error":
        return diagnosis("does not fit", "the config is valid and does not fit this env or its parent", layout.config)
    return diagnosis(
        "crash", "run the round again by hand: `autoqec run-round`; it repeats itself exactly", layout.train_log
    )


_LIMITS: tuple[tuple[str, Cause, str], ...] = (
    (
        "wall clock",
        "time limit",
        "a smaller net or larger batches; the clock only guards, so a busy machine hits it too",
    ),
    ("disk", "disk limit", "the search surface writes too much"),
    ("processes", "process limit", "the search surface starts processes"),
)


def _diagnose_measured(metrics: RoundMetrics, layout: RoundLayout) -> Diagnosis:
    """A round that was measured: harm, no effect, or nothing wrong."""
    effect, loss_drop = read.effect(metrics), read.relative_drop(train_log.read(layout.train_log).losses)
    see = tuple(str(path) for path in (layout.metrics, layout.train_log) if path.exists())
    loss_text = "" if loss_drop is None else f"; the loss fell by {100 * loss_drop:.0f}%"
    if effect is None or effect.delta_low > 0:
        return Diagnosis(layout.round, "ok", "none", "nothing is wrong with this round", "")
    effect_text = f"delta {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}] per shot{loss_text}"
    counts = f"{effect.counts.fixed} shots fixed, {effect.counts.broken} broken"
    if effect.delta_high < 0:
        advice = "nets that read the observable's own sector count evidence twice, hard flips break more than they fix"
        return Diagnosis(layout.round, "ok", "does harm", f"{effect_text}: {counts}", advice, see)
    advice = "train longer (a larger profile), or let the loss see the matching (training.finetune_share above 0)"
    return Diagnosis(layout.round, "ok", "no effect", f"{effect_text}: {counts}", advice, see)


def _env_fault(text: str | None, recorded: str) -> str | None:
    if text is None:
        return "env.yaml is missing or cannot be read"
    if sha256_bytes(text.encode()) != recorded:
        return "env.yaml is not the one the run was started with: its hash differs from the one in run.json"
    return predict_cost.env_problem(text)


def _metrics(layout: RoundLayout) -> RoundMetrics:
    try:
        return RoundMetrics.read(json.loads(layout.metrics.read_bytes()), location=str(layout.metrics))
    except FileNotFoundError:
        raise UsageError("holds no metrics.json", location=str(layout.dir), hint="name a round's directory") from None
    except (OSError, ValueError, ContractError) as error:
        raise UsageError(f"metrics.json cannot be read: {error}", location=str(layout.dir)) from error


def _config(layout: RoundLayout) -> dict[str, Any] | None:
    text = _text(layout.config)
    try:
        found = None if text is None else load_yaml(text, location=str(layout.config))
    except AutoqecError:
        return None
    return found if isinstance(found, dict) else None


def _phase(layout: RoundLayout) -> str:
    """What the round was doing when it ended: `training` or `finetuning`."""
    text = _text(layout.progress)
    rows: Iterable[dict[str, Any]] = csv.DictReader((text or "").splitlines())
    last = [row.get("Phase") for row in rows][-1:]
    return "finetuning" if last == ["finetuning"] else "training"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
