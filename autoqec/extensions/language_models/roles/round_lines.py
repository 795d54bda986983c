"""Recorded rounds as one short line each: the figures of every round in full, its texts as far as there is room."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoqec.contracts.verdict import FRESH, PairedEffect
from autoqec.contracts.views import RoundRow
from autoqec.extensions.language_models.roles.data_blocks import sanitize
from autoqec.extensions.language_models.roles.view_text import format_parents

MAX_TEXT_CHARS = 240  # of the texts of a line
DELTA_UNIT = 1e-5
_VERDICTS = {"VERIFIED": "V", "INCONCLUSIVE": "I", "SUSPICIOUS": "S", "FAILED": "F"}


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
