"""MCQEnv: multiple-choice questions, answered by letter or text."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from autoqec.continual.environments.qa import QAEnv
from autoqec.errors import UsageError

LETTERS = string.ascii_uppercase
_LETTER_ONLY = re.compile(r"^[(\[]?([A-Z])[)\].:]?$", re.IGNORECASE)
_LETTER_PREFIX = re.compile(r"^[(\[]?([A-Z])[)\].:]+\s+\S", re.IGNORECASE | re.DOTALL)
_ANSWER_IS = re.compile(r"\banswer(?:\s+is)?\s*:?\s*\**[(\[]?([A-Z])(?![A-Za-z])", re.IGNORECASE)


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
        """The question followed by its choices, one per line."""
        lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, self.choices, strict=False)]
        return "\n".join([question, *lines])

    def normalize_target(self, answer: Any) -> str:
        """The letter of the target."""
        return self.target_letter

    def normalize_action(self, action: str) -> str:
        """The letter that a reply names, or ""."""
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
        """The letter of the choice that a reply names; None if it names none."""
        text = text.strip()
        return (
            self._letter_in_range(_LETTER_ONLY.match(text))
            or self._letter_by_text(text)
            or self._letter_in_range(_LETTER_PREFIX.match(text))
            or self._letter_in_range(next(iter([*_ANSWER_IS.finditer(text)][::-1]), None))
        )

    def _letter_in_range(self, match: re.Match[str] | None) -> str | None:
        letter = match[1].upper() if match else ""
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
