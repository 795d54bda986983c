"""What a run's files say about how it searched: mechanical findings, each with the places to look at.

Reads history.jsonl, log.md, the rounds' train.log and reports, and the ledger; needs no language model.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.llm.ledger import Ledger
from autoqec.reporting import rows as read
from autoqec.store import train_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import ABORTED_STATUSES

STUCK_ROUNDS = 5  # measured rounds in a row without a new best
NEIGHBOUR_KEYS = 2  # keys in which a neighbour differs
MIN_LOSS_DROP = 0.2  # share of the loss that training took away
IDLE_ROUNDS = 3  # rounds after which a verified branch that nobody built on is worth a word


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing. see: files, relative to the repository's root. advice: what to do about it."""

    kind: str
    weight: Literal["note", "warning"]
    what: str
    rounds: tuple[int, ...] = ()
    see: tuple[str, ...] = ()
    advice: str = ""

    def dump(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ReviewedRun:
    """What the checks look at."""

    layout: RunLayout
    info: RunInfo
    rows: tuple[HistoryRow, ...]

    @cached_property
    def finished(self) -> list[HistoryRow]:
        """Rounds that came to their end."""
        return [row for row in self.rows if row.status != ABORTED_STATUSES]

    @cached_property
    def measured(self) -> list[HistoryRow]:
        return [row for row in self.finished if row.status == "ok" and row.delta_ler is not None]

    def see(self, *paths: Path) -> tuple[str, ...]:
        return tuple(str(path.relative_to(self.layout.repo_root)) for path in paths)


def review(layout: RunLayout) -> list[Finding]:
    """Every finding, warnings first. UsageError where there is no such run, ManualInterventionRequired where its
    truth is damaged.
    """
    history = History(layout)
    run = ReviewedRun(layout, history.info(), tuple(found.row for found in history.state().rounds.values()))
    found = [finding for check in CHECKS for finding in check(run)]
    return sorted(found, key=lambda finding: finding.weight != "warning")


def _repeats(run: ReviewedRun) -> Iterator[Finding]:
    groups: dict[str, list[HistoryRow]] = defaultdict(list)
    for row in run.finished:
        if row.dsl_config_sha256 and row.status != "compose_conflict":
            groups[row.dsl_config_sha256].append(row)
    for group in groups.values():
        if len(group) > 1:
            numbers = tuple(row.round for row in group)
            yield Finding(
                "repeat", "warning", f"one config was tried {len(group)} times: rounds {_list(numbers)}", numbers,
                run.see(run.layout.history), "only another surface or another parent's weights can make it differ",
            )  # fmt: skip


def _stuck(run: ReviewedRun) -> Iterator[Finding]:
    """The last rounds brought no new best and stayed close to what had been tried."""
    since = _since_best(run.measured)
    if len(since) < STUCK_ROUNDS:
        return
    near = []
    for row in since:
        older = [other.dsl_config for other in run.finished if other.round < row.round and other.dsl_config]
        if row.dsl_config and older:
            near.append(min(len(read.differing_keys(row.dsl_config, other)) for other in older))
    numbers = tuple(row.round for row in since)
    if near and statistics.median(near) <= NEIGHBOUR_KEYS:
        best = run.measured[len(run.measured) - len(since) - 1]
        yield Finding(
            "stuck", "warning",
            f"{len(since)} measured rounds since round {best.round} brought no better val figure, and most differ from "
            f"an earlier config in at most {NEIGHBOUR_KEYS} keys",
            numbers, run.see(run.layout.history, run.layout.log),
            "try another family, a composition, or --ideator hybrid",
        )  # fmt: skip


def _since_best(measured: list[HistoryRow]) -> list[HistoryRow]:
    best, at = float("-inf"), -1
    for index, row in enumerate(measured):
        if row.delta_ler is not None and row.delta_ler > best:
            best, at = row.delta_ler, index
    return measured[at + 1 :]


def _failures(run: ReviewedRun) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[HistoryRow]] = defaultdict(list)
    for row in run.finished:
        if row.status != "ok":
            groups[row.status, re.sub(r"[\d.]+", "#", row.status_reason or "")[:120]].append(row)
    for (status, _), group in groups.items():
        numbers = tuple(row.round for row in group)
        yield Finding(
            "failure", "warning" if len(group) > 1 else "note",
            f"{len(group)} of {len(run.finished)} rounds ended as {status}: {_flat(group[-1].status_reason)}",
            numbers, run.see(*(run.layout.round(number).metrics for number in numbers[-3:])),
            f"autoqec diagnose {run.info.run_id}",
        )  # fmt: skip


def _loss_without_effect(run: ReviewedRun) -> Iterator[Finding]:
    """Training worked on its loss, and the decoder decodes no better."""
    matches = []
    for row in run.measured:
        losses = train_log.read(run.layout.round(row.round).train_log).losses
        effect, loss_drop = read.effect(row), read.relative_drop(losses)
        if (
            effect
            and loss_drop is not None
            and loss_drop >= MIN_LOSS_DROP
            and effect.delta_low <= 0 <= effect.delta_high
        ):
            matches.append((row, effect, loss_drop))
    if not matches:
        return
    from autoqec.qec.stats import detectable_effect

    row, effect, loss_drop = matches[-1]
    detectable_gain = detectable_effect(effect.counts.shots, effect.counts.errors_reference / effect.counts.shots)
    numbers = tuple(row.round for row, _, _ in matches)
    yield Finding(
        "loss-without-effect", "warning" if len(matches) > 1 else "note",
        f"in rounds {_list(numbers)} the loss fell (in the last one by {100 * loss_drop:.0f}%) and the paired interval "
        f"of the logical error rate holds 0; {effect.counts.shots} val shots would show a fall of "
        f"{100 * detectable_gain:.0f}%",
        numbers, run.see(*(run.layout.round(number).train_log for number in numbers[-3:])),
        "let the loss see the matching (training.finetune_share above 0), or take a profile with more val shots",
    )  # fmt: skip


def _overfitting(run: ReviewedRun) -> Iterator[Finding]:
    """Val figures above what fresh shots allow."""
    judged = [row for row in run.measured if row.delta_vs_baseline_holdout is not None]
    above = [
        row for row in judged if row.delta_holdout_high is not None and (row.delta_ler or 0) > row.delta_holdout_high
    ]
    if not above:
        return
    numbers = tuple(row.round for row in above)
    ratio = statistics.mean((row.delta_vs_baseline_holdout or 0) / (row.delta_ler or 1) for row in above)
    yield Finding(
        "overfit-val", "warning" if 2 * len(above) > len(judged) and len(judged) > 1 else "note",
        f"in {len(above)} of {len(judged)} judged rounds the val gain lies above the 95% interval on fresh shots; "
        f"they keep {100 * ratio:.0f}% of it",
        numbers, run.see(*(run.layout.round(number).report_md for number in numbers[-3:])),
        "every round reuses the same val shots: nominate on the interval, not on the figure, or take more val shots",
    )  # fmt: skip


def _inconclusive(run: ReviewedRun) -> Iterator[Finding]:
    rows = [row for row in run.finished if row.verify_verdict == "SUSPICIOUS"]
    judged = sum(row.verify_verdict is not None for row in run.finished)
    if rows:
        numbers = tuple(row.round for row in rows)
        yield Finding(
            "undecided", "note",
            f"the judge could not decide about {len(rows)} of {judged} nominated rounds",
            numbers, run.see(*(run.layout.round(number).report_md for number in numbers[-3:])),
            "a larger profile gives the judge more shots; nominate fewer near misses",
        )  # fmt: skip


def _idle_branches(run: ReviewedRun) -> Iterator[Finding]:
    forks = [(row.fork_from,) if isinstance(row.fork_from, str) else row.fork_from for row in run.finished]
    used = {branch for fork in forks for branch in fork}
    last = max((row.round for row in run.finished), default=0)
    idle = [
        row for row in run.finished
        if row.verify_verdict == "VERIFIED" and row.branch not in used and last - row.round >= IDLE_ROUNDS
    ]  # fmt: skip
    if idle:
        numbers = tuple(row.round for row in idle)
        what = f"verified rounds that nothing was built on: {_list(numbers)}"
        see = run.see(run.layout.pareto, run.layout.fork_graph)
        yield Finding("idle-branch", "note", what, numbers, see, "extend or compose them (--ideator tpe does both)")


def _silent_model(run: ReviewedRun) -> Iterator[Finding]:
    """Rounds that a language model was asked for and a search had to take."""
    if run.info.ideator != "llm":
        return
    others = tuple(row.round for row in run.finished if row.ideator_source and not row.ideator_source.startswith("llm"))
    if others:
        what = (
            f"in {len(others)} of {len(run.finished)} rounds the model gave no usable proposal, so the search took them"
        )
        see = run.see(run.layout.ledger)
        yield Finding("silent-model", "warning", what, others, see, "the ledger names the calls that failed")


def _aborted(run: ReviewedRun) -> Iterator[Finding]:
    numbers = tuple(row.round for row in run.rows if row.status == "orphaned_branch")
    if numbers:
        what = f"{len(numbers)} rounds were lost to a crash: {_list(numbers)}"
        yield Finding("lost", "note", what, numbers, run.see(run.layout.history), "autoqec adopt brings one back")


def _stale_log(run: ReviewedRun) -> Iterator[Finding]:
    try:
        text = run.layout.log.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    logged_rounds = {int(number) for number in re.findall(r"^## Round (\d+)\b", text, re.MULTILINE)}
    missing = tuple(row.round for row in run.rows if row.round not in logged_rounds)
    if missing:
        what = f"log.md does not tell of rounds {_list(missing)}"
        advice = f"autoqec reconcile {run.info.run_id} rebuilds it"
        yield Finding("stale-log", "warning", what, missing, run.see(run.layout.log), advice)


def _budget(run: ReviewedRun) -> Iterator[Finding]:
    """Seconds and dollars, by what came of them."""
    seconds: dict[str, float] = defaultdict(float)
    for row in run.finished:
        end = row.verify_verdict or ("not nominated" if row.status == "ok" else row.status)
        seconds[end] += (row.train_wallclock_s or 0) + (row.eval_wallclock_s or 0)
        seconds["the judge"] += _judge_seconds(run.layout.round(row.round).report_json)
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    parts = [f"{name} {100 * part / total:.0f}%" for name, part in ordered if part]
    description = f"{total:.0f} s of training and judging" + (f": {', '.join(parts)}" if parts else "")
    totals = Ledger(run.layout.ledger).totals
    if totals.calls:
        dollars = "unknown" if totals.cost_usd is None else f"${totals.cost_usd:.4f}"
        description += f"; {totals.calls} model calls ({totals.failed} failed), {totals.usage.total} tokens, {dollars}"
    yield Finding("budget", "note", description, (), run.see(run.layout.history, run.layout.ledger), "")


def _judge_seconds(path: Path) -> float:
    try:
        return float(json.loads(path.read_bytes())["judge_wallclock_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


CHECKS: tuple[Callable[[ReviewedRun], Iterator[Finding]], ...] = (
    _stuck, _repeats, _failures, _loss_without_effect, _overfitting, _inconclusive, _idle_branches, _silent_model,
    _aborted,
    _stale_log, _budget,
)  # fmt: skip


def _list(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return shown + (f" and {len(numbers) - 12} more" if len(numbers) > 12 else "")


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())[:300]
