"""Everything that a run measured, as blocks of a prompt: one per round, oldest first.

The block of a round depends on this round and earlier ones only, so that the prompt of the next round begins with the
same blocks and a provider's cache serves them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoqec.contracts.dsl import flatten
from autoqec.contracts.verdict import FRESH, PairedEffect
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.extensions.language_models.roles.data_blocks import data_block, sanitize, sanitize_lines
from autoqec.extensions.language_models.roles.view_text import (
    CONTEXT_CHARS,
    TURN_CHARS,
    describe_config,
    format_loss_curves,
    format_parents,
    round_line,
    round_numbers,
)
from autoqec.ideators import space
from autoqec.ideators.search_state import ABORTED_STATUSES
from autoqec.qec.stats import validation_effect
from autoqec.store.layout import RoundLayout
from autoqec.store.round_files import load_round
from autoqec.store.train_log import LossCurve, read_loss_curves

STEP = 4  # rounds that leave the detailed part together; between two steps blocks are only added
MAX_ROUND_CHARS = 1_400  # of a detailed round with its block
SHORT_ROUND_CHARS = 1_000  # the same, in runs so long that lines are shorter than the next figure
GOOD_LINE_CHARS = 180  # of an earlier round; fewer rounds are detailed while lines would be shorter
LOSS_POINTS = 6
# Of a line.
MAX_TEXT_CHARS = 240  # of the texts of a line
DELTA_UNIT = 1e-5
_VERDICTS = {"VERIFIED": "V", "INCONCLUSIVE": "I", "SUSPICIOUS": "S", "FAILED": "F"}
_BLOCK_CHARS = 100  # tags and name of a block


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


def read_evidence(layout: RoundLayout) -> RoundEvidence:
    """Read what the files of a round say."""
    found = load_round(layout)
    metrics, report = found.metrics, found.report
    return RoundEvidence(
        validation=validation_effect(metrics) if metrics else None,
        gains=tuple(result.against for result in report.panel) if report else (),
        curves=read_loss_curves(layout.progress),
    )


def format_run_record(
    view: IdeatorView, read_evidence: ReadEvidence, room: int = CONTEXT_CHARS, read_texts: str | None = None
) -> tuple[str, ...]:
    """Return the recorded rounds of a view as blocks, oldest first; () without any.

    The last rounds have a block each. The rounds before them share one block with a line each, which changes every
    `STEP` rounds; the best verified one of them has a block of its own as well.

    Args:
        view: The view.
        read_evidence: Evidence of a round, by number.
        room: Maximum number of characters of all blocks together.
        read_texts: Tool that returns a round in full; None: none is offered.
    """
    rows, shots = _recorded(view), view.terms.shots
    names, by_branch = round_numbers(view), _by_branch(rows)
    first_detailed, limit = _detailed(len(rows), room)
    earlier, best = rows[:first_detailed], _best(rows[:first_detailed])

    def block(row: RoundRow, about: str = "") -> str:
        text = _paragraph(row, names, by_branch, read_evidence(row["round"]), shots, limit - _BLOCK_CHARS)
        return data_block(f"round {row['round']}{about}", text)

    summary: list[str] = []
    if earlier:
        room -= (_most_detailed(len(rows), first_detailed) + 1) * limit + _BLOCK_CHARS
        short = [_short_round(view, row, by_branch, read_evidence(row["round"])) for row in earlier]
        lines = format_round_lines(short, names, room, read_texts, shots=shots)
        summary = [data_block("earlier rounds, oldest first", lines)]
    if best is not None:
        summary.append(block(best, ", the best of the earlier ones"))
    return (*summary, *(block(row) for row in rows[first_detailed:]))


def _detailed(n_rounds: int, room: int) -> tuple[int, int]:
    """Return how many rounds come before the detailed ones, and the length of these.

    Both are functions of the last step, so that the blocks stay the same between two steps.
    """
    start = n_rounds - n_rounds % STEP
    for kept in range(start, 0, -STEP) or (0,):  # nothing precedes the first rounds
        left = room - (_most_detailed(n_rounds, start - kept) + 1) * MAX_ROUND_CHARS
        if left >= (start - kept) * GOOD_LINE_CHARS:
            return start - kept, MAX_ROUND_CHARS
    return max(0, start - 1), SHORT_ROUND_CHARS


def _most_detailed(n_rounds: int, first_detailed: int) -> int:
    """Return how many rounds are detailed at the end of the step."""
    return n_rounds - n_rounds % STEP + STEP - 1 - first_detailed


def _short_round(
    view: IdeatorView, row: RoundRow, by_branch: Mapping[str | None, RoundRow], evidence: RoundEvidence
) -> ShortRound:
    change = _change(row, by_branch, view.baseline_config)
    return ShortRound(row, change or describe_config(row.get("dsl_config")), evidence.validation, evidence.gains)


def describe_round(view: IdeatorView, row: RoundRow, evidence: RoundEvidence) -> str:
    """Return the paragraph of one round of a view."""
    return _paragraph(row, round_numbers(view), _by_branch(_recorded(view)), evidence, view.terms.shots)


def format_code(view: IdeatorView, read_code: ReadCode, room: int = TURN_CHARS, read_files: str | None = None) -> str:
    """Return the code of the best verified round against the baseline, and that of the last round against its parent.

    Rounds that changed no code are left out.

    Args:
        view: The view.
        read_code: Reads the difference of code.
        room: Maximum number of characters.
        read_files: Tool that returns the files of a round; None: none is offered.
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
    texts = [(name, text) for name, branch, against in blocks if (text := read_code(branch, against))]
    shown, end = [], f"\n(cut: {read_files} has all of it)" if read_files else "\n(cut)"
    for left, (name, text) in zip(range(len(texts), 0, -1), texts, strict=True):
        limit = room // left - len(data_block(name, "")) - 1
        cut = text if len(text) <= limit else f"{text[: max(0, limit - len(end))]}{end}"
        shown.append(data_block(name, sanitize_lines(cut, max(1, limit))))
        room -= len(shown[-1]) + 1
    return "\n".join(shown)


def _by_branch(rows: Sequence[RoundRow]) -> dict[str | None, RoundRow]:
    return {row["branch"]: row for row in rows if row.get("branch")}


def _recorded(view: IdeatorView) -> list[RoundRow]:
    return [row for row in view.history if row.get("status") not in ABORTED_STATUSES]


def _best(rows: Sequence[RoundRow]) -> RoundRow | None:
    verified = [row for row in rows if row.get("verify_verdict") == "VERIFIED"]
    return max(verified, key=lambda row: (row.get("delta_vs_baseline_holdout") or 0.0, -row["round"]), default=None)


def _paragraph(
    row: RoundRow,
    names: dict[str, int],
    by_branch: Mapping[str | None, RoundRow],
    evidence: RoundEvidence,
    shots: str,
    limit: int = MAX_ROUND_CHARS,
) -> str:
    lines = [round_line(row, names), f"expected: {sanitize(row.get('hypothesis'), 200)}"]
    change = _change(row, by_branch)
    if change:
        lines.append(f"changed from {format_parents(row['fork_from'], names)}: {sanitize(change, 160)}")
    if evidence.validation is not None:
        lines.append(_validation(evidence.validation))
    lines += [f"gain over {_gain(effect)} ({shots})" for effect in evidence.gains]
    lines += [
        f"{label}: {sanitize(text, 160)}"
        for label, text in (("result", row.get("summary_1line")), ("advice", row.get("next_hypothesis_seed")))
        if text
    ]
    lines += [f"reason: {sanitize(reason, 160)}" for reason in (row.get("verify_reasons") or ())[:3]]
    if evidence.curves:
        lines.append("mean loss by number of updates:")
        lines += format_loss_curves(evidence.curves, LOSS_POINTS).splitlines()
    kept, remaining = [], limit
    for line in lines:
        remaining -= len(line) + 3
        if remaining < 0:
            break
        kept.append(line)
    return "\n  ".join(kept)


def _change(row: RoundRow, by_branch: Mapping[str | None, RoundRow], baseline: dict[str, Any] | None = None) -> str:
    """Return the keys in which the config differs from that of its only parent, or of the baseline if it is given."""
    parents = [row["fork_from"]] if isinstance(row["fork_from"], str) else list(row["fork_from"])
    parent = by_branch.get(parents[0]) if len(parents) == 1 else None
    before_config = baseline if parent is None else parent.get("dsl_config")
    if len(parents) > 1 or not before_config or not row.get("dsl_config"):
        return ""
    if before_config["type"] != row["dsl_config"]["type"]:  # type: ignore[index]
        return "" if parent is None else f"{describe_config(before_config)} to {describe_config(row['dsl_config'])}"
    before, after = _flat(before_config), _flat(row["dsl_config"])
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ", ".join(
        f"{key} {space.format_value(before.get(key))} to {space.format_value(after.get(key))}" for key in changed
    )


def _flat(config: dict[str, Any] | None) -> dict[str, Any]:
    return flatten(config or {})


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


@dataclass(frozen=True)
class ShortRound:
    """What a line says of a round.

    Attributes:
        row: The round.
        change: Keys of the config that the round changed.
        validation: Gain over the inner decoder alone on validation shots; None: not measured.
        gains: Gain over each baseline on the verifier's shots.
    """

    row: RoundRow
    change: str
    validation: PairedEffect | None
    gains: Sequence[PairedEffect]


def format_round_lines(
    rounds: Sequence[ShortRound],
    names: Mapping[str, int],
    room: int,
    read_texts: str | None = None,
    *,
    shots: str = FRESH.shots,
) -> str:
    """Return one line per round under a header that explains the columns, in at most `room` characters.

    The texts of all lines are cut to the same length. If the figures alone are too long, the oldest rounds are left
    out, and counted.

    Args:
        rounds: The rounds, oldest first.
        names: Branch -> round.
        room: Maximum number of characters.
        read_texts: Tool that returns the texts of a round in full; None: none is offered.
        shots: How text names the verifier's shots.
    """
    baselines = list(dict.fromkeys(effect.reference for one in rounds for effect in one.gains))
    header = _header(baselines, read_texts, shots)
    figures = [_figures(one, dict(names), baselines) for one in rounds]
    room -= len(header) + len("\n(99999 earlier rounds left out)")
    kept, used = 0, 0
    for line in reversed(figures):
        if used + len(line) + 1 > room:
            break
        kept, used = kept + 1, used + len(line) + 1
    left_out = len(rounds) - kept
    width = min(MAX_TEXT_CHARS, (room - used) // kept) if kept else 0
    lines = [figures[at] + _texts(rounds[at], width) for at in range(left_out, len(rounds))]
    note = [f"({left_out} earlier rounds left out)"] if left_out else []
    return "\n".join([header, *note, *lines])


def _header(baselines: Iterable[str], read_texts: str | None, shots: str) -> str:
    names = ", ".join(sanitize(name, 40) for name in baselines) or "the baselines"
    return (
        f"round (f: forkable) < parents | gain on validation shots x1e-5 [95% interval] fixed/broken, or how "
        f"it ended | gain in % over {names} on {shots} | parameters/FLOPs | verdict (V verified, I inconclusive, "
        "S suspicious, F failed, - not tested) | change, keys by their initials | hypothesis > result; texts are cut"
        + (f", {read_texts} has them" if read_texts else "")
    )


def _figures(one: ShortRound, names: dict[str, int], baselines: Sequence[str]) -> str:
    row, effect = one.row, one.validation
    parents = format_parents(row.get("fork_from"), names).replace("baseline", "0").replace("r", "")
    start = f"r{row['round']}{'f' if row.get('forkable') else ''}<{parents}|"
    if row.get("status") not in (None, "ok"):
        return f"{start}{row['status']}|"
    if effect is not None:
        span = f"[{_units(effect.delta_low)},{_units(effect.delta_high)}]".replace("+", "")
        measured = f"{_units(effect.delta)}{span} {effect.counts.fixed}/{effect.counts.broken}"
    else:
        measured = "-" if row.get("delta_ler") is None else _units(float(row["delta_ler"] or 0.0))
    relative = {effect.reference: effect.relative for effect in one.gains}
    percents = [None if (gain := relative.get(name)) is None else f"{100 * gain:.2g}" for name in baselines]
    gains = ",".join(percent or "-" for percent in percents) if any(percents) else "-"
    cost = f"{_short(row.get('n_params'))}/{_short(row.get('flops_per_syndrome'))}"
    return f"{start}{measured}|{gains}|{cost}|{_VERDICTS.get(str(row.get('verify_verdict')), '-')}|"


def _texts(one: ShortRound, width: int) -> str:
    """Return change, hypothesis and result in at most `width` characters; what one leaves goes to those after it."""
    row = one.row
    failed = row.get("status") not in (None, "ok")
    result = row.get("status_reason") if failed else row.get("summary_1line")
    texts = [_initials(sanitize(one.change, 300)), sanitize(row.get("hypothesis"), 300), sanitize(result, 300)]
    room, shown = width - 2, list[str]()
    for text, share in zip(texts, (0.5, 0.6, 1.0), strict=True):
        limit = int(room * share)
        shown.append(sanitize(text, limit) if limit > 1 else "")
        room -= len(shown[-1])
    return f"{shown[0]}|{shown[1]}>{shown[2]}" if width > 4 else ""


def _initials(change: str) -> str:
    """Return a change of the config with short keys: `training.learning_rate 0.003 to 0.001` is `lr 0.003>0.001`."""
    short = re.sub(r"[a-z]+(?:_[a-z]+)+", lambda key: "".join(word[0] for word in key[0].split("_")), change)
    return re.sub(r"\b(?:training|mlp|gnn|conv|local|neural_bp)\.", "", short).replace(" to ", ">")


def _units(delta: float) -> str:
    """Return a difference of rates in the unit of the table, with three digits at most."""
    return f"{delta / DELTA_UNIT:+.3g}".replace("e+0", "e")


def _short(count: int | None) -> str:
    """Return a count with two or three digits and a unit."""
    if count is None:
        return "-"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
