"""MathQAEnv: questions with numeric answers, in plain text or LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

from autoqec.continual.environments.qa import QAEnv

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
_PLAIN = re.compile(rf"^({_NUMBER})(?:/({_NUMBER}))?$")
_FRACTION = re.compile(r"^([-+]?)\\frac\{([^{}]+)\}\{([^{}]+)\}$")
_LAST = re.compile(rf"(?<![\w.,/])({_NUMBER})(?:/({_NUMBER}))?(?![\w/])")
_NOISE = re.compile(r"\\left|\\right|\\displaystyle|\\[,;:! ]|\\[()\[\]]|[$\s~]")
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\^\s*\{?\\circ\}?")
_MAX_CHARS = 200  # longer text is not a number and would be slow to parse


class MathQAEnv(QAEnv):
    """Compares numbers within `tolerance` (relative and absolute), integers exactly, other answers as stripped text."""

    env_type: ClassVar[str] = "math_qa"

    def __init__(
        self,
        question: str,
        answer: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        tolerance: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(question, answer, metadata, **kwargs)
        self.tolerance = tolerance

    def evaluate(self, action: str) -> dict[str, Any]:
        """Compare the answer in `action` with the target."""
        target, given = self.normalize_target(self.answer), self.normalize_action(action)
        correct = given == target
        target_value = parse_number(target)
        if target_value is not None:
            value = parse_number(given)
            if value is None and extract_boxed(action) is None:
                value = _last_number(action)
            correct = value is not None and _close(value, target_value, self.tolerance)
        return {
            "correct": correct,
            "target": target,
            "message": "numeric-match" if target_value is not None else "text-match",
        }

    def normalize_target(self, answer: Any) -> str:
        """The target without box and markup."""
        return strip_latex(_unwrap_boxed(str(answer)))

    def normalize_action(self, action: str) -> str:
        """The answer in a reply without box and markup."""
        return strip_latex(_unwrap_boxed(action))


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` with balanced braces; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    begin = start + len("\\boxed{")
    for place in range(begin - 1, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return text[begin:place]
    return None


def strip_latex(text: str) -> str:
    """Remove dollar signs, spaces, units and sizing commands, and normalise fractions."""
    text = _NOISE.sub("", _UNIT.sub("", text)).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = text.replace("−", "-")
    return text.rstrip(".") if not text.endswith("..") else text


def parse_number(text: str) -> Fraction | None:
    """The value of a stripped number or fraction; None for other text."""
    if len(text) > _MAX_CHARS:
        return None
    if match := _FRACTION.match(text):
        sign, top, bottom = match.groups()
        over, under = parse_number(top), parse_number(bottom)
        if over is None or not under:
            return None
        return -over / under if sign == "-" else over / under
    match = _PLAIN.match(text)
    return _ratio(match) if match else None


def _last_number(text: str) -> Fraction | None:
    """The last number of a text, for replies without a box."""
    plain = text.replace("$", " ").replace("−", "-")
    found = [match for match in _LAST.finditer(plain) if len(match[0]) <= _MAX_CHARS]
    return _ratio(found[-1]) if found else None


def _ratio(match: re.Match[str]) -> Fraction | None:
    top = Fraction(match[1].replace(",", "").rstrip("."))
    bottom = Fraction(match[2].replace(",", "").rstrip(".")) if match[2] else Fraction(1)
    return top / bottom if bottom else None


def _unwrap_boxed(text: str) -> str:
    found = extract_boxed(text)
    return text if found is None else found


def _close(value: Fraction, target_value: Fraction, tolerance: float) -> bool:
    if value.denominator == target_value.denominator == 1:
        return value == target_value  # a tolerance would make large integers equal to their neighbours
    try:
        return math.isclose(value, target_value, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return value == target_value
