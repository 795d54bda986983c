"""Reviews how a run searched: mechanical findings, each with the files that support it.

Reads history.jsonl, log.md, train.log and reports of the rounds, and the ledger; needs no language model.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.dsl import flatten
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.verdict import comparison_terms
from autoqec.qec.stats import validation_effect
from autoqec.reporting import advice
from autoqec.reporting.loss import loss_drops
from autoqec.reporting.run_report import outcome, verification_seconds
from autoqec.store import atomic
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.model_calls import ModelCalls
from autoqec.store.run_state import ABORTED, RoundState

STUCK_ROUNDS = 5  # measured rounds in a row without a new best
COMPARED_ROUNDS = 50  # the latest of them, which are compared with all earlier configs
NEIGHBOUR_KEYS = 2  # configs that differ in at most this many keys are neighbours
MIN_LOSS_DROP = 0.2  # relative fall of the loss that counts as training progress
IDLE_ROUNDS = 3  # rounds after which a verified branch without descendants is reported


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        kind: What was checked.
        weight: How much it matters.
        what: The finding in one sentence.
        rounds: Rounds that it concerns.
        see: Existing files that show it, relative to the root of the repository.
        advice: What to do about it; empty if nothing can be done.
    """

    kind: str
    weight: Literal["note", "warning"]
    what: str
    rounds: tuple[int, ...] = ()
    see: tuple[str, ...] = ()
    advice: str = ""

    def dump(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class ReviewedRun:
    """Input of the checks: the state of every attempt."""

    layout: RunLayout
    info: RunInfo
    attempts: tuple[RoundState, ...]

    @cached_property
    def rows(self) -> tuple[HistoryRow, ...]:
        """The last row of every attempt."""
        return tuple(attempt.row for attempt in self.attempts)

    @cached_property
    def finished(self) -> list[HistoryRow]:
        """Rounds that were not aborted."""
        return [row for row in self.rows if row.status != ABORTED]

    @cached_property
    def measured(self) -> list[HistoryRow]:
        """Rounds with a result on val shots."""
        return [row for row in self.finished if row.status == "ok" and row.delta_ler is not None]

    def see(self, *paths: Path) -> tuple[str, ...]:
        """Return those of the paths that exist, relative to the root of the repository."""
        return tuple(str(path.relative_to(self.layout.repo_root)) for path in paths if path.exists())


def review(layout: RunLayout) -> list[Finding]:
    """Return all findings about a run, warnings first.

    Raises:
        UsageError: There is no such run.
        ManualInterventionRequired: Its history is damaged.
    """
    history = History(layout)
    run = ReviewedRun(layout, history.info(), tuple(history.state().rounds.values()))
    findings = [finding for check in CHECKS for finding in check(run)]
    return sorted(findings, key=lambda finding: finding.weight != "warning")


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
                run.see(run.layout.history),
                "repeat a config only with changed code or other initial weights",
            )  # fmt: skip


def _stuck(run: ReviewedRun) -> Iterator[Finding]:
    """Report a run whose last rounds brought no new best and stayed close to earlier configs."""
    since = _since_best(run.measured)
    if len(since) < STUCK_ROUNDS:
        return
    near = _distances_to_earlier_configs(run, since[-COMPARED_ROUNDS:])
    numbers = tuple(row.round for row in since)
    if near and statistics.median(near) <= NEIGHBOUR_KEYS:
        best = run.measured[len(run.measured) - len(since) - 1]
        yield Finding(
            "stuck", "warning",
            f"{len(since)} measured rounds since round {best.round} brought no better val result, and most of the last "
            f"{min(len(since), COMPARED_ROUNDS)} differ from an earlier config in at most {NEIGHBOUR_KEYS} keys",
            numbers, run.see(run.layout.history, run.layout.log),
            _other_family(best),
        )  # fmt: skip


def _distances_to_earlier_configs(run: ReviewedRun, rows: list[HistoryRow]) -> list[int]:
    """For each row, the smallest number of keys in which its config differs from one of an earlier round."""
    configs = [(row.round, _config_items(row.dsl_config)) for row in run.finished if row.dsl_config]
    distances = []
    for row in rows:
        if row.dsl_config:
            items = _config_items(row.dsl_config)
            differing = (len({key for key, _ in items ^ other}) for number, other in configs if number < row.round)
            distances += [distance for distance in [min(differing, default=None)] if distance is not None]
    return distances


def _config_items(config: dict[str, Any]) -> frozenset[tuple[str, str]]:
    """Dotted keys with their values; a missing key equals None."""
    return frozenset((key, repr(value)) for key, value in flatten(config).items() if value is not None)


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
    """Report rounds whose training loss fell while the decoder did not improve."""
    matches = []
    for row in run.measured:
        drops = loss_drops(run.layout.round(row.round))
        effect, loss_drop = validation_effect(row), max(drops.values(), default=None)
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
        f"in rounds {_list(numbers)} the loss of a phase fell (in the last one by {100 * loss_drop:.0f}%) but the "
        f"paired interval of the logical error rate contains 0; {effect.counts.shots} val shots can detect a reduction "
        f"of {100 * detectable_gain:.0f}%",
        numbers, run.see(*(run.layout.round(number).train_log for number in numbers[-3:])),
        "train through the inner decoder: --pin training.finetune_share=1, in a new run"
        if advice.can_start_finetuning(row.dsl_config)
        else advice.larger_profile(run.info.profile),
    )  # fmt: skip


def _overfitting(run: ReviewedRun) -> Iterator[Finding]:
    """Report gains on val shots above the interval of the verification."""
    tested = [
        (row.round, row.validation.delta, row.verification.gain)
        for row in run.measured
        if row.validation and row.verification and row.verification.gain
    ]
    above = [
        (number, on_val, gain.value) for number, on_val, gain in tested if gain.high is not None and on_val > gain.high
    ]
    if not above:
        return
    numbers = tuple(number for number, _, _ in above)
    shots = comparison_terms(sealed=run.info.sealed_shots).shots
    ratio = statistics.mean(gain / (on_val or 1) for _, on_val, gain in above)
    yield Finding(
        "overfit-val", "warning" if 2 * len(above) > len(tested) and len(tested) > 1 else "note",
        f"in {len(above)} of {len(tested)} tested rounds the val gain lies above the 95% interval on {shots}; "
        f"the gain on {shots} is {100 * ratio:.0f}% of it on average",
        numbers, run.see(*(run.layout.round(number).report_md for number in numbers[-3:])),
        advice.larger_profile(run.info.profile),
    )  # fmt: skip


def _inconclusive(run: ReviewedRun) -> Iterator[Finding]:
    rows = [row for row in run.finished if outcome(row) == "INCONCLUSIVE"]
    tested = sum(row.verify_verdict is not None for row in run.finished)
    if rows:
        numbers = tuple(row.round for row in rows)
        yield Finding(
            "inconclusive", "note",
            f"verification of {len(rows)} of {tested} rounds was inconclusive",
            numbers, run.see(*(run.layout.round(number).report_md for number in numbers[-3:])),
            advice.larger_profile(run.info.profile),
        )  # fmt: skip


def _idle_branches(run: ReviewedRun) -> Iterator[Finding]:
    """Report verified rounds that no later round forked from."""
    forks = [(row.fork_from,) if isinstance(row.fork_from, str) else row.fork_from for row in run.finished]
    used = {branch for fork in forks for branch in fork}
    last = max((row.round for row in run.finished), default=0)
    idle = [
        row for row in run.finished
        if row.verify_verdict == "VERIFIED" and row.branch not in used and last - row.round >= IDLE_ROUNDS
    ]  # fmt: skip
    if idle:
        numbers = tuple(row.round for row in idle)
        message = f"verified rounds that no later round forked from: {_list(numbers)}"
        see = run.see(run.layout.pareto, run.layout.fork_graph)
        yield Finding(
            "idle-branch", "note", message, numbers, see, advice.resume_command(run.layout, len(run.finished))
        )


def _silent_model(run: ReviewedRun) -> Iterator[Finding]:
    """Report rounds in which the language model gave no usable proposal."""
    if run.info.ideator != "llm":
        return
    others = tuple(row.round for row in run.finished if row.ideator_source and not row.ideator_source.startswith("llm"))
    if others:
        message = (
            f"in {len(others)} of {len(run.finished)} rounds the model gave no usable proposal, so TPE proposed instead"
        )
        see = run.see(run.layout.ledger)
        yield Finding("silent-model", "warning", message, others, see)


def _aborted(run: ReviewedRun) -> Iterator[Finding]:
    numbers = tuple(row.round for row in run.rows if row.status == "orphaned_branch")
    if numbers:
        message = f"{len(numbers)} rounds were aborted by a crash: {_list(numbers)}"
        command = advice.adopt_command(run.layout, run.attempts)
        yield Finding("aborted", "note", message, numbers, run.see(run.layout.history), command)


def _stale_log(run: ReviewedRun) -> Iterator[Finding]:
    try:
        text = atomic.read_bytes(run.layout.log).decode()
    except (OSError, ValueError):
        text = ""
    logged_rounds = {int(number) for number in re.findall(r"^## Round (\d+)\b", text, re.MULTILINE)}
    missing = tuple(row.round for row in run.rows if row.round not in logged_rounds)
    if missing:
        message = f"log.md does not contain rounds {_list(missing)}"
        command = f"autoqec reconcile {run.info.run_id}"
        yield Finding("stale-log", "warning", message, missing, run.see(run.layout.log, run.layout.history), command)


def _budget(run: ReviewedRun) -> Iterator[Finding]:
    """Report time and model cost by outcome."""
    seconds: dict[str, float] = defaultdict(float)
    verification = sum(verification_seconds(run.layout, row) for row in run.finished)
    for row in run.finished:
        seconds[f"{outcome(row)} rounds"] += (row.train_wallclock_s or 0) + (row.eval_wallclock_s or 0)
    total = sum(seconds.values()) + verification
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    parts = [f"verification {100 * verification / total:.0f}%"] if verification else []
    parts += [f"training of {name} {100 * part / total:.0f}%" for name, part in ordered if part]
    shares = f": {', '.join(parts)}" if parts else ""
    description = f"{total:.0f} s of training, measurement and verification{shares}"
    totals = ModelCalls(run.layout.ledger).totals
    if totals.calls:
        dollars = "unknown" if totals.cost_usd is None else f"${totals.cost_usd:.4f}"
        description += f"; {totals.calls} model calls ({totals.failed} failed), {totals.usage.total} tokens, {dollars}"
    yield Finding("budget", "note", description, (), run.see(run.layout.history, run.layout.ledger), "")


def _mixed_devices(run: ReviewedRun) -> Iterator[Finding]:
    """Report rounds on different devices, since their times are compared in charts and budgets."""
    by_device: dict[str, list[int]] = defaultdict(list)
    for row in run.finished:
        if row.device:
            by_device[row.device].append(row.round)
    if len(by_device) > 1:
        parts = "; ".join(f"rounds {_list(tuple(numbers))} on {device}" for device, numbers in by_device.items())
        message = f"times of rounds are not comparable, because devices differ: {_flat(parts)}"
        rounds = tuple(sorted(number for numbers in by_device.values() for number in numbers))
        request = "--slurm constraint=… or --slurm gres=gpu:KIND:1 requests one kind"
        yield Finding("mixed-devices", "note", message, rounds, run.see(run.layout.history), request)


CHECKS: tuple[Callable[[ReviewedRun], Iterator[Finding]], ...] = (
    _stuck, _repeats, _failures, _loss_without_effect, _overfitting, _inconclusive, _idle_branches, _silent_model,
    _aborted, _stale_log, _mixed_devices, _budget,
)  # fmt: skip


def _other_family(best: HistoryRow) -> str:
    """Advice to search another type of network; it fits every env."""
    tried = (best.dsl_config or {}).get("type")
    other = next(family for family in ("mlp", "gnn") if family != tried)
    return f"start a run with another type of network: --pin type={other}"


def _list(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return shown + (f" and {len(numbers) - 12} more" if len(numbers) > 12 else "")


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())[:300]
