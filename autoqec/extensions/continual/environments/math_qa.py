"""MathQAEnv: questions with numeric answers, in plain text or LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

from autoqec.extensions.continual.environments.numbers import (
    Quantity,
    first_quantity,
    last_quantity,
    parse_quantity,
    strip_markup,
)
from autoqec.extensions.continual.environments.qa import QAEnv

_STATED = re.compile(r"\banswer\b[^.:=\n]{0,40}?(?:\bis\b|[:=])(?!\s*not\b)[\s*]*([^\n]+)", re.IGNORECASE)


DEFAULT_TOLERANCE = 1e-6


class MathQAEnv(QAEnv):
    r"""Compares numbers within `tolerance` (relative and absolute), other answers as text without markup.

    Without an explicit tolerance it is 1e-6, and integers are compared exactly. The answer of a reply is its last
    `\boxed{…}`, else the whole reply, else the number after its last "answer is", else its last number. Units are not
    compared; `50%` equals 50 and 0.5.
    """

    env_type: ClassVar[str] = "math_qa"

    def __init__(
        self,
        question: str,
        answer: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        tolerance: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(question, answer, metadata, **kwargs)
        self.tolerance = tolerance

    def evaluate(self, action: str) -> dict[str, Any]:
        """Compare the answer in `action` with the target."""
        target, given = self.normalize_target(self.answer), self.normalize_action(action)
        correct = given == target
        number = parse_quantity(_unwrap_boxed(str(self.answer)))
        if number is not None:
            value = read_number(action)
            correct = value is not None and _equal(value, number, self.tolerance)
        return {
            "correct": correct,
            "target": target,
            "message": "numeric-match" if number is not None else "text-match",
        }

    def normalize_target(self, answer: Any) -> str:
        """Return the target without box and markup."""
        return strip_markup(_unwrap_boxed(str(answer)))

    def normalize_action(self, action: str) -> str:
        """Return the answer in a reply without box and markup."""
        return strip_markup(_unwrap_boxed(action))


def read_number(reply: str) -> Quantity | None:
    """Return the number that a reply gives as its answer; None without one."""
    boxed = extract_boxed(reply)
    if boxed is not None:
        return parse_quantity(boxed)
    if (whole := parse_quantity(reply)) is not None:
        return whole
    stated = [match[1] for match in _STATED.finditer(reply)]
    return (first_quantity(stated[-1]) if stated else None) or last_quantity(reply)


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}` with balanced braces; None without one."""
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


def _unwrap_boxed(text: str) -> str:
    found = extract_boxed(text)
    return text if found is None else found


def _equal(given: Quantity, target: Quantity, tolerance: float | None) -> bool:
    return any(_close(value, wanted, tolerance) for value in given.readings for wanted in target.readings)


def _close(value: Fraction, target_value: Fraction, tolerance: float | None) -> bool:
    if tolerance is None:
        if value.denominator == target_value.denominator == 1:
            return value == target_value  # the default tolerance would make large integers equal to their neighbours
        tolerance = DEFAULT_TOLERANCE
    try:
        return math.isclose(value, target_value, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return value == target_value
