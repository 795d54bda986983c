"""Everything that a run measured, as blocks of a prompt: one per round, oldest first.

The block of a round depends on this round and earlier ones only, so that the prompt of the next round begins with the
same blocks and a provider's cache serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoqec.contracts.verdict import PairedEffect
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.ideators import space
from autoqec.ideators.data_blocks import data_block, sanitize, sanitize_lines
from autoqec.ideators.search_state import ABORTED_STATUSES
from autoqec.ideators.view_text import describe_config, format_loss_curves, format_parents, round_line, round_numbers
from autoqec.qec.stats import validation_effect
from autoqec.store.layout import RunLayout
from autoqec.store.progress import LossCurve, read_loss_curves
from autoqec.store.round_files import load_round

DETAIL_STEP = 10  # rounds that leave the detailed part together; between two steps blocks are only added
MAX_SUMMARY_CHARS = 6_000  # of the rounds before the detailed ones, in one block
MAX_ROUND_CHARS = 1_150
MAX_CODE_CHARS = 6_000
LOSS_POINTS = 6


@dataclass(frozen=True)
class RoundEvidence:
    """What the files of a round add to its row.

    Attributes:
        validation: Gain over the inner decoder alone on validation shots; None: not measured.
        gains: Gain over each baseline on the verifier's shots.
        curves: Mean losses, by training phase.
    """

    validation: PairedEffect | None = None
    gains: tuple[PairedEffect, ...] = ()
    curves: dict[str, LossCurve] = field(default_factory=dict)


ReadEvidence = Callable[[int], RoundEvidence]
ReadCode = Callable[[str, str | None], str]  # diff of a branch's code against another branch; None: the baseline


def evidence_reader(layout: RunLayout) -> ReadEvidence:
    """Return a function from the number of a recorded round to its evidence; each round is read once."""
    known: dict[int, RoundEvidence] = {}

    def read(number: int) -> RoundEvidence:
        if number not in known:
            place = layout.round(number)
            found = load_round(place)
            metrics, report = found.metrics, found.report
            known[number] = RoundEvidence(
                validation=validation_effect(metrics) if metrics else None,
                gains=tuple(result.against for result in report.panel) if report else (),
                curves=read_loss_curves(place.progress),
            )
        return known[number]

    return read


def format_run_record(view: IdeatorView, read_evidence: ReadEvidence) -> tuple[str, ...]:
    """Return the recorded rounds of a view as blocks, oldest first; () without any.

    The last rounds, at least `DETAIL_STEP` if there are as many, have a block each. The rounds before them share one
    block with a line each, in which only the best verified one is described in full; if it becomes too long, its oldest
    lines are left out. It changes every `DETAIL_STEP` rounds.

    Args:
        view: The view.
        read_evidence: Evidence of a round, by number.
    """
    rows = _recorded(view)
    names, by_branch = round_numbers(view), {row["branch"]: row for row in rows if row.get("branch")}
    first_detailed = max(0, len(rows) - DETAIL_STEP) // DETAIL_STEP * DETAIL_STEP
    earlier, detailed = rows[:first_detailed], rows[first_detailed:]

    def paragraph(row: RoundRow) -> str:
        return _paragraph(row, names, by_branch, read_evidence(row["round"]))

    best = _best(earlier)
    lines = [paragraph(row) if row is best else round_line(row, names) for row in earlier]
    summary = [data_block("earlier rounds, oldest first", _last_that_fit(lines, MAX_SUMMARY_CHARS))] if lines else []
    return (*summary, *(data_block(f"round {row['round']}", paragraph(row)) for row in detailed))


def describe_round(view: IdeatorView, row: RoundRow, evidence: RoundEvidence) -> str:
    """Return the paragraph of one round of a view."""
    by_branch: dict[str | None, RoundRow] = {one["branch"]: one for one in _recorded(view) if one.get("branch")}
    return _paragraph(row, round_numbers(view), by_branch, evidence)


def format_code(view: IdeatorView, read_code: ReadCode) -> str:
    """Return the code of the best verified round against the baseline, and that of the last round against its parent.

    Rounds that changed no code are left out.

    Args:
        view: The view.
        read_code: Reads the difference of code.
    """
    rows, blocks = _recorded(view), list[tuple[str, str, str | None]]()
    best, names = _best(rows), round_numbers(view)
    if best is not None and best["branch"]:
        name = f"code of round {best['round']}, the best, as a diff against the baseline"
        blocks.append((name, best["branch"], None))
    last = rows[-1] if rows else None
    if last is not None and last["branch"]:
        parents = [last["fork_from"]] if isinstance(last["fork_from"], str) else list(last["fork_from"])
        parent = parents[0] if parents and parents[0] in names else None
        if parent is not None or last is not best:
            name = f"code of round {last['round']}, the last, as a diff against its parent"
            blocks.append((f"{name} {format_parents(parent or 'baseline', names)}", last["branch"], parent))
    texts = [(name, read_code(branch, against)[:MAX_CODE_CHARS]) for name, branch, against in blocks]
    return "\n".join(data_block(name, sanitize_lines(text, MAX_CODE_CHARS)) for name, text in texts if text)


def _recorded(view: IdeatorView) -> list[RoundRow]:
    return [row for row in view.history if row.get("status") not in ABORTED_STATUSES]


def _best(rows: Sequence[RoundRow]) -> RoundRow | None:
    verified = [row for row in rows if row.get("verify_verdict") == "VERIFIED"]
    return max(verified, key=lambda row: (row.get("delta_vs_baseline_holdout") or 0.0, -row["round"]), default=None)


def _paragraph(
    row: RoundRow, names: dict[str, int], by_branch: dict[str | None, RoundRow], evidence: RoundEvidence
) -> str:
    lines = [round_line(row, names), f"expected: {sanitize(row.get('hypothesis'), 240)}"]
    change = _change(row, by_branch)
    if change:
        lines.append(f"changed from {format_parents(row['fork_from'], names)}: {sanitize(change, 240)}")
    if evidence.validation is not None:
        lines.append(_validation(evidence.validation))
    lines += [f"gain over {_gain(effect)} (fresh shots)" for effect in evidence.gains]
    lines += [f"reason: {sanitize(reason, 160)}" for reason in (row.get("verify_reasons") or ())[:3]]
    if evidence.curves:
        lines.append("mean loss by number of updates:")
        lines += format_loss_curves(evidence.curves, LOSS_POINTS).splitlines()
    lines += [
        f"{label}: {sanitize(text, 240)}"
        for label, text in (("result", row.get("summary_1line")), ("advice", row.get("next_hypothesis_seed")))
        if text
    ]
    kept, remaining = [], MAX_ROUND_CHARS
    for line in lines:
        remaining -= len(line) + 3
        if remaining < 0:
            break
        kept.append(line)
    return "\n  ".join(kept)


def _change(row: RoundRow, by_branch: dict[str | None, RoundRow]) -> str:
    """Return the keys in which the config differs from that of its only parent."""
    parents = [row["fork_from"]] if isinstance(row["fork_from"], str) else list(row["fork_from"])
    parent = by_branch.get(parents[0]) if len(parents) == 1 else None
    if parent is None or not parent.get("dsl_config") or not row.get("dsl_config"):
        return ""
    if parent["dsl_config"]["type"] != row["dsl_config"]["type"]:  # type: ignore[index]
        return f"{describe_config(parent['dsl_config'])} to {describe_config(row['dsl_config'])}"
    before, after = _flat(parent["dsl_config"]), _flat(row["dsl_config"])
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ", ".join(
        f"{key} {space.format_value(before.get(key))} to {space.format_value(after.get(key))}" for key in changed
    )


def _flat(config: dict[str, Any] | None) -> dict[str, Any]:
    return space.flatten(config or {})


def _validation(effect: PairedEffect) -> str:
    counts = effect.counts
    fixed = f"{counts.fixed} fixed, {counts.broken} broken of {counts.shots} shots"
    return f"validation: {fixed}, delta {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}]"


def _gain(effect: PairedEffect) -> str:
    counts = effect.counts
    shots = f"{counts.errors_reference} to {counts.errors_candidate} errors in {counts.shots} shots"
    if effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return f"{sanitize(effect.reference, 60)}: {shots}"
    interval = f"[{effect.relative_low:.1%}, {effect.relative_high:.1%}]"
    return f"{sanitize(effect.reference, 60)}: {effect.relative:.1%} {interval}, {shots}"


def _last_that_fit(paragraphs: Sequence[str], limit: int) -> str:
    kept: list[str] = []
    for paragraph in reversed(paragraphs):
        limit -= len(paragraph) + 1
        if limit < 0:
            kept.append("(earlier rounds left out)")
            break
        kept.append(paragraph)
    return "\n".join(reversed(kept))
