r"""Reads quantities in replies: decimals, fractions, mixed numbers, powers of ten, percent, LaTeX and units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 200  # longer text is not a number and would be slow to parse

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
# Sign, whole part of a mixed number, numerator, denominator, percent sign.
_QUANTITY = rf"([-+]?)(?:(\d+)\s+(?=\d+/\d))?({_DECIMAL})(?:\s?/\s?({_DECIMAL}))?\s*(\\?%|percent\b)?"
_WHOLE = re.compile(rf"^[€£¥]?\s*{_QUANTITY}\s*(.*)$", re.DOTALL)
_ANYWHERE = re.compile(rf"(?<!\^\{{)(?<![\w.,/^]){_QUANTITY}(?![\w/^])")

_SPACING = re.compile(r"\\left|\\right|\\displaystyle|\\[,;:! ]|\\[()\[\]]|~")
_FRACTION_COMMAND = re.compile(r"\\[dtc]?frac\s*(\{[^{}]*\}|\d)\s*(\{[^{}]*\}|\d)")
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit|mathbf|operatorname)\s*\{([^{}]*)\}")
_TEN_TO_THE = r"10\s*\^\s*\{?([-+]?\d{1,3})\}?"
_SCALES = {"hundred": "e2", "thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12"}
_SCALE = re.compile(rf"(?<=\d)\s+({'|'.join(_SCALES)})\b")
_VULGAR = {
    sign: f"{top}/{bottom}"
    for bottom, tops in {
        2: {"½": 1},
        3: {"⅓": 1, "⅔": 2},
        4: {"¼": 1, "¾": 3},
        8: {"⅛": 1, "⅜": 3, "⅝": 5, "⅞": 7},
    }.items()
    for sign, top in tops.items()
}
_VULGAR_FRACTION = re.compile(rf"(?<=\d)\s*([{''.join(_VULGAR)}])|([{''.join(_VULGAR)}])")

_SYMBOLS = "m cm mm km nm um g kg mg s ms us ns h hr min L mL l ml N J W V A K C F Pa Hz mol rad in ft yd mi lb oz eV"
# Degrees, a known symbol, or a word; with powers, products and ratios of such. Neither a variable nor a function.
_OTHER_WORD = r"(?!(?:and|or|pi|sin|cos|tan|cot|sec|log|exp|sqrt|mod|not)\b)[A-Za-z]{3,}"
_FACTOR = rf"(?:°[CF]?|(?:{_SYMBOLS.replace(' ', '|')})(?![A-Za-z])|{_OTHER_WORD})(?:\s*\^\s*\{{?-?\d\}}?|[²³])?"
_UNIT = re.compile(rf"^{_FACTOR}(?:\s*(?:/|·|\\cdot|\*|\s)\s*{_FACTOR}){{0,5}}$")


@dataclass(frozen=True)
class Quantity:
    """A number; `is_percent` if a percent sign follows it."""

    value: Fraction
    is_percent: bool = False

    @property
    def readings(self) -> tuple[Fraction, ...]:
        """The values that it may stand for: `50%` is 50, as an answer in percent, and 0.5."""
        return (self.value, self.value / 100) if self.is_percent else (self.value,)


def parse_quantity(text: str) -> Quantity | None:
    """Return the quantity that a text is, such as `x = 3 cm`; None for any other text."""
    if len(text) > MAX_CHARS:
        return None
    text = _plain(text).strip(" \t\n*`").rstrip(". ")
    name, _, value = text.rpartition("=")
    if re.fullmatch(r"\s*\\?[A-Za-z]\w*(?:_\{?\w+\}?)?\s*", name):
        text = value.strip()
    match = _WHOLE.match(text)
    if match is None or not (match[6] == "" or _UNIT.match(match[6])):
        return None
    return _quantity(match)


def first_quantity(text: str) -> Quantity | None:
    """Return the first quantity of a text, or the result where it begins with a calculation; None without one."""
    text = _plain(text)
    match = _ANYWHERE.search(text)
    if match is not None and re.match(r"\s*(?:[-+*/^×=]|\\times|\\cdot)", text[match.end() :]) and "=" in text:
        match = _ANYWHERE.search(text, text.index("=") + 1)
    return _quantity(match) if match is not None and len(match[0]) <= MAX_CHARS else None


def last_quantity(text: str) -> Quantity | None:
    """Return the last quantity of a text; None without one."""
    found = [match for match in _ANYWHERE.finditer(_plain(text)) if len(match[0]) <= MAX_CHARS]
    return _quantity(found[-1]) if found else None


def strip_markup(text: str) -> str:
    """Return a formula or word without dollar signs, spaces, sizing commands and a unit in `text` at its end."""
    text = re.sub(r"\\[dtc]frac", r"\\frac", _SPACING.sub("", text)).replace("$", "")
    text = re.sub(r"\^\s*\{?\\circ\}?", "", text)
    text = re.sub(r"(?<=[\w})])\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}\s*$", "", text)
    text = "".join(_TEXT_COMMAND.sub(r"\1", text).split()).replace("−", "-")
    return text.rstrip(".") if not text.endswith("..") else text


def _plain(text: str) -> str:
    r"""Return the text with its numbers in plain form: `2\frac{1}{2}` as `2 1/2`, `3 \times 10^5` as `3e5`."""
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|\\!|,\\!)(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\^\s*\{?\\circ\}?|\\degree\b", "°", text.replace("−", "-").replace("\\$", "").replace("$", ""))
    text = re.sub(r"(?<=\d)\\%", "%", text)
    text = _FRACTION_COMMAND.sub(_plain_fraction, _TEXT_COMMAND.sub(r" \1", _SPACING.sub(" ", text)))
    text = re.sub(r"(\S) +\^", r"\1^", text)
    text = re.sub(rf"(?<=\d)\s*(?:\*|×|\\times|\\cdot)\s*{_TEN_TO_THE}", r"e\1", text)
    text = re.sub(rf"(?<![\w.]){_TEN_TO_THE}", r"1e\1", text)
    text = _SCALE.sub(lambda match: _SCALES[match[1]], text)
    return _VULGAR_FRACTION.sub(lambda match: f" {_VULGAR[match[1]]}" if match[1] else _VULGAR[match[2]], text)


def _plain_fraction(match: re.Match[str]) -> str:
    top, bottom = match[1].strip("{} "), match[2].strip("{} ")
    if not all(re.fullmatch(rf"[-+]?{_DECIMAL}", part) for part in (top, bottom)):
        return match[0]
    # Directly after an integer, it is the second part of a mixed number.
    return f"{' ' if match.string[: match.start()][-1:].isdigit() else ''}{top}/{bottom}"


def _quantity(match: re.Match[str]) -> Quantity | None:
    sign, whole, top, bottom, percent = match.groups()[:5]
    under = _fraction(bottom) if bottom else Fraction(1)
    if not under:
        return None
    value = _fraction(top) / under + int(whole or 0)
    return Quantity(-value if sign == "-" else value, percent is not None)


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip("."))
