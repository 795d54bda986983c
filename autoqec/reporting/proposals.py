"""What the proposals of a run cost: trials, and calls of language models by role and round."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import Trial
from autoqec.errors import AutoqecError
from autoqec.qec.stats import paired_effect
from autoqec.reporting.text import count, duration, interval, percent, plain, pluralize
from autoqec.store.jsonl import read_contracts
from autoqec.store.layout import RunLayout

if TYPE_CHECKING:
    from autoqec.store.model_calls import ModelCalls

_BY_MODEL = re.compile(r"(hybrid )?llm ")


def read_ledger(layout: RunLayout) -> ModelCalls | None:
    """Read the calls of language models; None if none was called, or the ledger cannot be read."""
    from autoqec.store.model_calls import ModelCalls

    if not layout.ledger.exists():
        return None
    try:
        return ModelCalls(layout.ledger)
    except (AutoqecError, KeyError, TypeError, ValueError):
        return None


def trials_by_attempt(layout: RunLayout) -> dict[str, list[Trial]] | None:
    """Return the trials of each attempt, in the order they were made; None if the file cannot be read."""
    found: dict[str, list[Trial]] = defaultdict(list)
    try:
        for trial in read_contracts(layout.trials, Trial):
            found[trial.round_attempt_id].append(trial)
    except (AutoqecError, OSError):
        return None
    return dict(found)


def proposed_by_model(rows: Iterable[HistoryRow]) -> int:
    """Return how many rounds a language model proposed."""
    return sum(_BY_MODEL.match(row.ideator_source) is not None for row in rows)


def describe_trials(trials: Sequence[Trial]) -> list[str]:
    """Describe the trials of one attempt, one line each; a check after a failed one is that of a repair."""
    lines, repairs = [], 0
    for trial in trials:
        if trial.kind == "screen":
            name = f"screen, {trial.share:.0%} of the training"
        else:
            name = f"check of repair {repairs}" if repairs else "check of the code"
            repairs += trial.status != "ok"
        lines.append(f"{name}: {_result(trial)}")
    return lines


def _result(trial: Trial) -> str:
    if trial.status != "ok":
        return f"{trial.status}: {plain(trial.reason or 'no reason given', 300)}, {trial.seconds:.1f} s"
    if trial.kind == "check" or trial.val is None or not trial.val.shots:
        return f"ok, {trial.seconds:.1f} s"  # a check's validation shots are too few to compare anything
    effect, val = paired_effect(trial.val), trial.val
    gain = f"{percent(effect.relative)} {interval(effect.relative_low, effect.relative_high)}".strip()
    return (
        f"{gain} fewer failures than the baseline decoder; "
        f"Δ = {effect.delta:+.2e} {interval(effect.delta_low, effect.delta_high, relative=False)} per shot; "
        f"{val.errors_reference} → {val.errors_candidate} errors in {val.shots} validation shots "
        f"({val.fixed} fixed, {val.broken} broken); {count(trial.train_shots)} training shots, {trial.seconds:.1f} s"
    )


def describe_all_trials(by_attempt: dict[str, list[Trial]]) -> str:
    """Summarize the trials of a run: how many of each kind, how many failed, training shots and time."""
    trials = [trial for group in by_attempt.values() for trial in group]
    screens = [trial for trial in trials if trial.kind == "screen"]
    failed = sum(trial.status != "ok" for trial in trials)
    shots = sum(trial.train_shots or 0 for trial in trials)
    return (
        f"{pluralize(len(screens), 'screen')}, {pluralize(len(trials) - len(screens), 'check')} of code, "
        f"{failed} failed; {count(shots)} training shots, {duration(sum(trial.seconds for trial in trials))}"
    )


def describe_usage(usage: dict[str, Any]) -> str:
    """Describe sums over calls, as `UsageTotals.to_json` gives them: calls, tokens and cost."""
    cached = usage["cache_read_input_tokens"]
    tokens_in = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
    of_cache = f" ({count(cached)} from the cache)" if cached else ""
    cost = "cost unknown" if usage["cost_usd"] is None else f"${usage['cost_usd']:.4f}"
    return (
        f"{pluralize(usage['calls'], 'call')}, {usage['failed']} failed, {count(tokens_in)} tokens in{of_cache}, "
        f"{count(usage['output_tokens'])} out, {cost}"
    )
