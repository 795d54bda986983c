"""Questions with one answer: exact text, numbers in plain text or LaTeX, and choices; how replies are read."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.base import Environment, episode_done_error

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


class QAEnv(Environment):
    """Compares answers exactly. Subclasses override `evaluate`, or the normalisation of question, target and action."""

    env_type: ClassVar[str] = "qa"

    def __init__(
        self,
        question: str,
        answer: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        instruction_template: str | None = None,
        env_id: str | None = None,
    ) -> None:
        self.question, self.answer = question, answer
        self.metadata = dict(metadata or {})
        self.instruction_template = instruction_template
        self.env_id = env_id or str(self.metadata.get("id", self.env_type))
        self._done = False

    def reset(self) -> str:
        """Start an episode and return the question."""
        self._done = False
        question = self.normalize_input(self.question)
        # Not str.format: template and question may contain other braces.
        return self.instruction_template.replace("{question}", question) if self.instruction_template else question

    def step(self, action: str) -> tuple[None, dict[str, Any], bool, dict[str, Any]]:
        """Answer the question."""
        if self._done:
            raise episode_done_error(self)
        feedback = self.evaluate(action)
        self._done = True
        return None, feedback, True, self.info()

    def evaluate(self, action: str) -> dict[str, Any]:
        """Compare an answer with the target."""
        target = self.normalize_target(self.answer)
        return {"correct": self.normalize_action(action) == target, "target": target, "message": "exact-match"}

    def info(self) -> dict[str, Any]:
        """Return the metadata, with its id also as `question_id`."""
        known = {"question_id": self.metadata["id"]} if "id" in self.metadata else {}
        return {**known, **self.metadata}

    def normalize_input(self, question: str) -> str:
        """Return the question as it is shown."""
        return question

    def normalize_target(self, answer: Any) -> str:
        """Return the target in the form in which it is compared."""
        return str(answer)

    def normalize_action(self, action: str) -> str:
        """Return an answer in the form in which it is compared."""
        return action


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


LETTERS = string.ascii_uppercase
_LETTER_ONLY = re.compile(r"^[(\[]?([A-Z])[)\].:]*$", re.IGNORECASE)
_LETTER_PREFIX = re.compile(r"^[(\[]?([A-Z])[)\].:]+\s+\S", re.IGNORECASE | re.DOTALL)
# A capital letter, or a small one that cannot be the article: in brackets, or at the end of a sentence.
_LETTER = r"(?:\(([A-Za-z])\)|\b([A-Z])\b(?!['’])|\b([a-z])(?=[).:]|\s*$))(?!\s*(?:,|/|or|and)\s*\(?[A-Z]\b)"
_FILLER = (
    r"(?:\s+(?:is|be|would|must|should|the|to|this|question|problem|here|letter|option|choice|correct|therefore))*"
)
_STATEMENT = r"\b(?i:answer|choose|pick|select|go with|(?:correct|right|best|final)\s+(?:option|choice))"
_STATED_LETTER = re.compile(
    rf"{_STATEMENT}{_FILLER}\s*[:=]?\s*{_LETTER}"
    rf"|{_LETTER}\s+is\s+(?:the\s+)?(?:correct|right|best|answer)",
    re.MULTILINE,
)
_STATED_TEXT = re.compile(r"\b(?:answer|option|choice)(?:\s+is)?\s*:?\s+([^\n]+)", re.IGNORECASE)
_MENTIONED = re.compile(
    rf"\b(?i:option|choice)\s*:?\s*{_LETTER}(?!\s+is\s+(?:not|wrong|incorrect|false))", re.MULTILINE
)
_BOLD = re.compile(r"(?:\*\*|__)\s*[(\[]?([A-Z])[)\].:]*\s*(?:\*\*|__)")
_MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*(?=\{)|[*_`${}]")


class MCQEnv(QAEnv):
    """A question with several choices, given as an argument or in the metadata under `choices`.

    The target is a letter, an index or the text of a choice. A letter that names a choice is read as a letter, even if
    it is the text of another choice.
    """

    env_type: ClassVar[str] = "mcq"

    def __init__(
        self,
        question: str,
        answer: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        choices: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        found = choices if choices is not None else (metadata or {}).get("choices")
        if not isinstance(found, list | tuple) or not 2 <= len(found) <= len(LETTERS):
            raise UsageError(
                f"a multiple-choice question needs a list of 2 to {len(LETTERS)} choices", location="choices"
            )
        self.choices = [str(choice) for choice in found]
        super().__init__(question, answer, metadata, **kwargs)
        self.target_letter = self._target()

    def normalize_input(self, question: str) -> str:
        """Return the question followed by its choices, one per line."""
        lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, self.choices, strict=False)]
        return "\n".join([question, *lines])

    def normalize_target(self, answer: Any) -> str:
        """Return the letter of the target."""
        return self.target_letter

    def normalize_action(self, action: str) -> str:
        """Return the letter that a reply names, or ""."""
        return self.letter_of(action) or ""

    def evaluate(self, action: str) -> dict[str, Any]:
        """Compare the choice in `action` with the target."""
        chosen = self.letter_of(action)
        return {
            "correct": chosen == self.target_letter,
            "target": self.target_letter,
            "message": "choice-match" if chosen else "no choice recognised",
            "extra": {"chosen": chosen, "expected": self.target_letter},
        }

    def letter_of(self, text: str) -> str | None:
        """Return the letter of the choice that a reply names; None if it names none."""
        boxed = extract_boxed(text)
        if boxed is not None and (letter := self._letter_of_choice(boxed)):
            return letter
        plain = _MARKUP.sub("", text).strip()
        last_line = plain.rpartition("\n")[2]
        return (
            self._letter_of_choice(plain)
            or self._last_letter(_STATED_LETTER, plain)
            or self._letter_of_stated_text(plain)
            or self._letter_of_choice(last_line)
            or self._only_letter(_BOLD, text)
            or self._only_letter(_MENTIONED, plain)
        )

    def _letter_of_choice(self, text: str) -> str | None:
        """Return the letter of a text that is a choice: its letter, its text, or both."""
        text = _MARKUP.sub("", text).strip()
        return (
            self._letter_in_range(_LETTER_ONLY.match(text))
            or self._letter_by_text(text)
            or self._letter_in_range(_LETTER_PREFIX.match(text))
        )

    def _letter_of_stated_text(self, text: str) -> str | None:
        stated = [match[1] for match in _STATED_TEXT.finditer(text)]
        return self._letter_by_text(stated[-1]) if stated else None

    def _last_letter(self, pattern: re.Pattern[str], text: str) -> str | None:
        return self._letter_in_range(next(iter([*pattern.finditer(text)][::-1]), None))

    def _only_letter(self, pattern: re.Pattern[str], text: str) -> str | None:
        """Return the letter that every match names; None if they differ."""
        letters = {self._letter_in_range(match) for match in pattern.finditer(text)}
        return letters.pop() if len(letters) == 1 else None

    def _letter_in_range(self, match: re.Match[str] | None) -> str | None:
        letter = next(filter(None, match.groups()), "").upper() if match else ""
        return letter if letter and LETTERS.index(letter) < len(self.choices) else None

    def _letter_by_text(self, text: str) -> str | None:
        wanted = _normalized(text)
        found = [letter for letter, choice in zip(LETTERS, self.choices, strict=False) if _normalized(choice) == wanted]
        return found[0] if found else None

    def _target(self) -> str:
        answer = self.answer
        if isinstance(answer, int) and not isinstance(answer, bool):
            found = LETTERS[answer] if 0 <= answer < len(self.choices) else None
        else:
            text = str(answer).strip()
            found = self._letter_in_range(_LETTER_ONLY.match(text)) or self._letter_by_text(text)
            if found is None and text.isdecimal() and int(text) < len(self.choices):
                found = LETTERS[int(text)]
        if found is None:
            raise UsageError(f"the target {answer!r} is none of the {len(self.choices)} choices", location="answer")
        return found


def _normalized(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()
