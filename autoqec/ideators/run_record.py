"""Everything that a run measured, as text for a prompt: one paragraph per round, oldest first.

The calls of one proposal (tool turns, a retry) share it, so that a provider's cache can serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoqec.contracts.verdict import PairedEffect
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.ideators import space
from autoqec.ideators.data_blocks import data_block, sanitize
from autoqec.ideators.moves import ABORTED_STATUSES
from autoqec.ideators.view_text import describe_config, format_loss_curves, format_parents, round_line, round_numbers
from autoqec.store.layout import RunLayout
from autoqec.store.progress import LossCurve, read_loss_curves
from autoqec.store.round_files import load_round

MAX_RECORD_CHARS = 24_000
MAX_ROUND_CHARS = 1_400
MAX_CODE_CHARS = 6_000
DETAIL_STEP = 10
LOSS_POINTS = 6


@dataclass(frozen=True)
class RoundEvidence:
    """What the files of a round add to its row.

    Attributes:
        fixed: Validation shots that the inner decoder alone got wrong and the predecoder right; None: not measured.
        broken: The reverse.
        gains: Gain over each baseline on the verifier's shots.
        curves: Mean losses, by training phase.
    """

    fixed: int | None = None
    broken: int | None = None
    gains: tuple[PairedEffect, ...] = ()
    curves: dict[str, LossCurve] = field(default_factory=dict)


ReadEvidence = Callable[[int], RoundEvidence]
ReadCode = Callable[[str], str]


def evidence_reader(layout: RunLayout) -> ReadEvidence:
    """Return a function from the number of a recorded round to its evidence; each round is read once."""
    known: dict[int, RoundEvidence] = {}

    def read(number: int) -> RoundEvidence:
        if number not in known:
            place = layout.round(number)
            found = load_round(place)
            metrics, report = found.metrics, found.report
            known[number] = RoundEvidence(
                fixed=metrics.val_fixed if metrics else None,
                broken=metrics.val_broken if metrics else None,
                gains=tuple(result.against for result in report.panel) if report else (),
                curves=read_loss_curves(place.progress),
            )
        return known[number]

    return read


def format_run_record(
    view: IdeatorView, read_evidence: ReadEvidence, read_code: ReadCode | None = None, *, limit: int = MAX_RECORD_CHARS
) -> str:
    """Return the recorded rounds of a view in at most `limit` characters.

    The last rounds, at least `DETAIL_STEP` if there are as many, and the best verified one are described in full, with
    the change of code of the best one and of the last one. Earlier ones take one line; the oldest are left out if even
    these do not fit.

    Args:
        view: The view.
        read_evidence: Evidence of a round, by number.
        read_code: Diff of a branch's code against the baseline ("" for a change of the config alone); None if the run
            does not allow changes of code.
        limit: Maximum number of characters.
    """
    rows = [row for row in view.history if row.get("status") not in ABORTED_STATUSES]
    if not rows:
        return ""
    names, by_branch = round_numbers(view), {row["branch"]: row for row in rows if row.get("branch")}
    best = _best(rows)
    first_detailed = max(0, len(rows) - DETAIL_STEP) // DETAIL_STEP * DETAIL_STEP
    paragraphs = [
        _paragraph(row, names, by_branch, read_evidence(row["round"]))
        if index >= first_detailed or row is best
        else round_line(row, names)
        for index, row in enumerate(rows)
    ]
    code = [] if read_code is None else _code_blocks([best, rows[-1]], read_code)
    remaining = limit - sum(map(len, code)) - 100
    return "\n".join([data_block("recorded rounds, oldest first", _last_that_fit(paragraphs, remaining)), *code])


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
    if evidence.fixed is not None and row.get("val_shots"):
        lines.append(f"validation: {evidence.fixed} fixed, {evidence.broken} broken of {row['val_shots']} shots")
    lines += [f"gain over {_gain(effect)}" for effect in evidence.gains]
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


def _gain(effect: PairedEffect) -> str:
    counts = effect.counts
    shots = f"{counts.errors_reference} to {counts.errors_candidate} errors in {counts.shots} shots"
    if effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return f"{sanitize(effect.reference, 60)}: {shots}"
    interval = f"[{effect.relative_low:.1%}, {effect.relative_high:.1%}]"
    return f"{sanitize(effect.reference, 60)}: {effect.relative:.1%} {interval}, {shots}"


def _code_blocks(rows: Sequence[RoundRow | None], read_code: ReadCode) -> list[str]:
    blocks = []
    for number, branch in {row["round"]: row["branch"] for row in rows if row is not None and row["branch"]}.items():
        lines = [sanitize_line(line) for line in read_code(str(branch)).splitlines()]
        text = "\n".join(lines)[:MAX_CODE_CHARS]
        if text:
            blocks.append(data_block(f"code of round {number}, as a diff against the baseline", text))
    return blocks


def sanitize_line(line: str) -> str:
    """Return a line of code without control characters; indentation stays."""
    return "".join(char if char.isprintable() else " " for char in line.expandtabs(4))[:200]


def _last_that_fit(paragraphs: Sequence[str], limit: int) -> str:
    kept: list[str] = []
    for paragraph in reversed(paragraphs):
        limit -= len(paragraph) + 1
        if limit < 0:
            kept.append("(earlier rounds left out)")
            break
        kept.append(paragraph)
    return "\n".join(reversed(kept))
