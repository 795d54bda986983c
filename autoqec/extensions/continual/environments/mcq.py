"""MCQEnv: multiple-choice questions, answered by letter or text."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.math_qa import extract_boxed
from autoqec.extensions.continual.environments.qa import QAEnv

LETTERS = string.ascii_uppercase
_LETTER_ONLY = re.compile(r"^[(\[]?([A-Z])[)\].:]*$", re.IGNORECASE)
_LETTER_PREFIX = re.compile(r"^[(\[]?([A-Z])[)\].:]+\s+\S", re.IGNORECASE | re.DOTALL)
# A capital letter, or a small one that cannot be the article: in brackets, or at the end of a sentence.
_LETTER = r"(?:\(([A-Za-z])\)|\b([A-Z])\b(?!['’])|\b([a-z])(?=[).:]|\s*$))(?!\s*(?:,|/|or|and)\s*\(?[A-Z]\b)"
_FILLER = (
    r"(?:\s+(?:is|be|would|must|should|the|to|this|question|problem|here|letter|option|choice|correct|therefore))*"
)
_STATEMENT = r"\b(?i:answer|choose|pick|select|go with|(?:correct|right|best|final)\s+(?:option|choice))"
_STATED = re.compile(
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
            or self._last_letter(_STATED, plain)
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
