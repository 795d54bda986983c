"""Numbers and untrusted text formatted for terminals and pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoqec.contracts.verdict import MemberResult, PairedEffect

BARS = "▁▂▃▄▅▆▇█"
MAX_BARS = 24
# An underscore inside a word, as in `finetune_share`, is no markup in CommonMark, and no # after a letter. The class is
# first, because the search then skips all other characters at once.
_MARKUP = re.compile(r"[\\`*\[\]~$|_#](?<!\w#)(?:(?<!_)|(?<!\w_)|(?!\w))")
# What precedes the text of a line in CommonMark: block quotes and markers of list items.
_MARKERS = re.compile(r"(?:[\s>+*-]|\d+[.)])*")


def plain(text: str, limit: int = 400) -> str:
    """Return untrusted text as one line of at most `limit` characters that cannot control a terminal.

    Control, format and bidirectional characters are replaced by their escape sequences.
    """
    shown = text
    if not text.isprintable():
        shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def paragraphs(text: str, limit: int = 4000) -> str:
    """Return untrusted text as several lines, each treated as by `plain`; tabs become spaces."""
    lines = text[:limit].expandtabs(4).splitlines()
    return "\n".join(plain(line, limit) for line in lines) + ("…" if len(text) > limit else "")


def markdown(text: str) -> str:
    """Return untrusted text as one line of Markdown that renders as that text: no markup, links or HTML.

    Where no tag is open, `>` has a meaning at the start of a line only, so that it stays readable inside: `0.1 -> 0.2`.
    """
    shown = plain(text, 4000).replace("&", "&amp;").replace("<", "&lt;")
    shown = _MARKERS.sub(lambda markers: markers[0].replace(">", "&gt;"), shown, count=1)
    return _MARKUP.sub(r"\\\g<0>", shown)


def code_span(text: str) -> str:
    """Return untrusted text for the inside of a Markdown code span."""
    return plain(text, 400).replace("`", "'")


def percent(value: float | None) -> str:
    """0.046 -> +4.6%."""
    return "–" if value is None else f"{100 * value:+.1f}%"


def interval(low: float | None, high: float | None, *, relative: bool = True) -> str:
    """Format a confidence interval, in percent if relative; empty if it is unknown."""
    if low is None or high is None:
        return ""
    return f"[{100 * low:+.1f}, {100 * high:+.1f}]%" if relative else f"[{low:+.2e}, {high:+.2e}]"


def count(value: float | None) -> str:
    """1234567 -> 1.23M."""
    if value is None:
        return "–"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"


def pluralize(number: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{number} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """83 -> 1:23, 3723 -> 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float]) -> str:
    """Draw a series as at most `MAX_BARS` bars, each the mean of a stretch."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    size = max(1, -(-len(finite) // MAX_BARS))
    means = [sum(part) / len(part) for part in (finite[i : i + size] for i in range(0, len(finite), size))]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in means)


def effect_line(name: str, effect: PairedEffect) -> str:
    """Describe the gain over one reference: relative gain and Δ with 95% intervals, and the counts behind them."""
    counts = effect.counts
    gain = f"{percent(effect.relative)} {interval(effect.relative_low, effect.relative_high)}"
    delta = f"Δ = {effect.delta:+.2e} {interval(effect.delta_low, effect.delta_high, relative=False)} per shot"
    errors = f"{counts.errors_reference} → {counts.errors_candidate} errors in {counts.shots} shots"
    return f"against {name}: {gain} fewer failures; {delta}; {errors} ({counts.fixed} fixed, {counts.broken} broken)"


def member_line(member: MemberResult) -> str:
    """Describe the gain on one circuit of a family over the inner decoder alone, and whether it is claimed."""
    effect = member.effects[0]
    gain = f"{percent(effect.relative)} {interval(effect.relative_low, effect.relative_high)}".strip()
    errors = (
        f"{effect.counts.errors_reference} → {effect.counts.errors_candidate} errors in {effect.counts.shots} shots"
    )
    return f"{member}: {gain} fewer failures, {errors}, {'claimed' if member.holds else 'not claimed'}"
