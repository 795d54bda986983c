"""The notebook: lessons whose figures are compared with the history, and the ideas that failed.

A lesson that cites a figure that the history does not have is refused. A full notebook accepts a lesson only if it
replaces earlier ones, so that none is lost unless the model merges it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoqec.contracts.dsl import flatten
from autoqec.contracts.views import RoundRow
from autoqec.errors import ContractError
from autoqec.extensions.language_models.contracts import Citation, Lesson
from autoqec.extensions.language_models.roles.data_blocks import data_block, fitted_block, sanitize
from autoqec.extensions.language_models.roles.view_text import FAILURES_CHARS, LESSONS_CHARS
from autoqec.ideators.search_state import ABORTED_STATUSES
from autoqec.store import jsonl
from autoqec.store.jsonl import read_contracts

MAX_LESSONS = 15
MAX_LESSON_CHARS = 140
MAX_FAILED_IDEAS = 20
TOLERANCE = 0.01  # relative; the prompt shows three digits
_FIGURE_IN_TEXT = re.compile(r"(?<![\w.])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:\s*%)?(?![\w.]\d)", re.IGNORECASE)


class Notebook:
    """The lessons of one run, in a file to which lines are only appended.

    Args:
        path: notebook.jsonl.
        attempt: Returns the id of the current attempt.
        interrupted: Ids of the attempts whose answers are used again.
        is_repeated: Returns whether the latest answer is one of these. Its lessons get the result that they had then,
            so that the next request is the one that was answered.
    """

    def __init__(
        self,
        path: Path,
        attempt: Callable[[], str | None] = lambda: None,
        interrupted: Collection[str] = (),
        is_repeated: Callable[[], bool] = lambda: False,
    ) -> None:
        self._path, self._attempt = path, attempt
        self._interrupted, self._is_repeated = frozenset(interrupted), is_repeated
        self._n_repeated = 0  # lines of the interrupted attempts that were written again

    def lessons(self) -> list[Lesson]:
        """Return the current lessons, oldest first."""
        return current_lessons(self._path)

    def add(
        self, text: str, cites: Sequence[Citation], history: Iterable[RoundRow], replaces: Sequence[int] = ()
    ) -> Lesson:
        """Append a lesson.

        Args:
            text: The lesson, at most `MAX_LESSON_CHARS` characters.
            cites: Figures that it rests on.
            history: Recorded rounds.
            replaces: Numbers of the lessons that it contains.

        Raises:
            ContractError: A figure is not that of the history, or the notebook is full.
        """
        lines, text = read_contracts(self._path, Lesson), sanitize(text, MAX_LESSON_CHARS)
        earlier = self._earlier(lines)
        lessons = _current(earlier)
        known = {lesson.id for lesson in lessons}
        same = [one for one in lessons if one.text == text and one.cites == tuple(cites)]
        if same:
            return same[0]
        if missing := sorted(set(replaces) - known):
            raise ContractError(f"no lesson {missing[0]}; lessons: {sorted(known)}", location="replaces")
        if len(known) - len(set(replaces)) >= MAX_LESSONS:
            raise ContractError(
                f"the notebook holds {MAX_LESSONS} lessons", location="replaces",
                hint="merge: name in `replaces` the lessons that this one contains",
            )  # fmt: skip
        check_figures(text, cites, {row["round"]: row for row in history})
        lesson = Lesson(
            id=1 + max((line.id for line in lines), default=0), text=text, cites=tuple(cites), replaces=tuple(replaces),
            attempt=self._attempt(),
        )  # fmt: skip
        if len(earlier) < len(lines):
            written = lines[len(earlier)]
            if lesson == written.model_copy(update={"id": lesson.id, "attempt": lesson.attempt}):
                self._n_repeated += 1
                return written
        jsonl.append(self._path, lesson.dump())
        return lesson

    def _earlier(self, lines: list[Lesson]) -> list[Lesson]:
        """Return the lines that the file had when the latest answer was used for the first time."""
        if not self._is_repeated():
            return lines
        first = next((at for at, line in enumerate(lines) if line.attempt in self._interrupted), len(lines))
        return lines[: first + self._n_repeated]


def current_lessons(path: Path) -> list[Lesson]:
    """Return the lessons that no later one replaces."""
    return _current(read_contracts(path, Lesson))


def _current(lines: Sequence[Lesson]) -> list[Lesson]:
    replaced = {number for line in lines for number in line.replaces}
    return [line for line in lines if line.id not in replaced]


def check_figures(text: str, cites: Sequence[Citation], rows: Mapping[int, RoundRow]) -> None:
    """Raise ContractError for a citation, or a figure in the text, that the history does not have.

    Figures in the text are numbers with a decimal point, an exponent or a per cent sign. Each has to equal a cited
    value or a value in the config of a cited round.
    """
    allowed: list[float] = []
    for cite in cites:
        row: Mapping[str, Any] | None = rows.get(cite.round)
        if row is None or row.get("status") in ABORTED_STATUSES:
            raise ContractError(f"round {cite.round} is not recorded", location="cites")
        actual = row.get(cite.figure)
        if actual is None or not _equal(cite.value, actual):
            measured = "not measured" if actual is None else f"{actual:.4g}"
            message = f"{cite.figure} of round {cite.round} is {measured}, not {cite.value:.4g}"
            raise ContractError(message, location="cites")
        allowed += [cite.value, *_numbers(row.get("dsl_config"))]
    for match in _FIGURE_IN_TEXT.finditer(text):
        figure = match[0].replace("−", "-")
        if not any(mark in figure.lower() for mark in ".e%"):
            continue
        value = float(figure.rstrip("% ")) / (100 if figure.endswith("%") else 1)
        if not any(_equal(abs(value), abs(known)) for known in allowed):
            raise ContractError(f"`{match[0]}` is in no cited figure", location="text", hint="cite its round")


def _numbers(config: Any) -> list[float]:
    flat = flatten(dict(config)) if config else {}
    return [float(value) for value in flat.values() if isinstance(value, int | float) and not isinstance(value, bool)]


def _equal(one: float, other: float) -> bool:
    return math.isfinite(one) and math.isclose(one, other, rel_tol=TOLERANCE)


def format_lesson(lesson: Lesson, limit: int = 1_000) -> str:
    """Return a lesson with its figures in one line of at most `limit` characters; further figures are counted."""
    text, cites = (
        sanitize(lesson.text, limit - 20),
        [f"r{cite.round} {cite.figure} {cite.value:.4g}" for cite in lesson.cites],
    )
    for shown in range(len(cites), -1, -1):
        more = [f"{len(cites) - shown} more"] if shown < len(cites) else []
        line = f"{lesson.id}. {text} [{', '.join([*cites[:shown], *more])}]"
        if len(line) <= limit:
            return line
    return line[:limit]


def lessons_block(lessons: Sequence[Lesson]) -> str:
    """Return all lessons as a data block; empty without any. Lessons of earlier versions may be cut."""
    if not lessons:
        return ""
    name = f"notebook: {len(lessons)} of at most {MAX_LESSONS} lessons; their figures agree with the history"
    share = (LESSONS_CHARS - len(data_block(name, ""))) // len(lessons) - 1
    return data_block(name, "\n".join(format_lesson(lesson, share) for lesson in lessons))


def failures_block(history: Iterable[RoundRow]) -> str:
    """Return the ideas that failed as a data block; empty without any."""
    return fitted_block("ideas that failed, newest first", failed_ideas(history), FAILURES_CHARS)


def failed_ideas(history: Iterable[RoundRow]) -> list[str]:
    """Return the ideas that failed with the reason, newest first; ideas with one reason share a line."""
    groups: dict[str, list[RoundRow]] = {}
    for row in history:
        reason = _failure(row)
        if reason:
            groups.setdefault(re.sub(r"[-+]?\d[\d.e+-]*", "#", reason), []).append(row)
    newest = sorted(groups.values(), key=lambda rows: -rows[-1]["round"])[:MAX_FAILED_IDEAS]
    return [
        f"r{', r'.join(str(row['round']) for row in rows[-8:])}: {sanitize(rows[-1]['hypothesis'], 100)}: "
        f"{sanitize(_failure(rows[-1]), 120)}"
        for rows in newest
    ]


def _failure(row: RoundRow) -> str:
    """Return why the idea of a round failed; "" if it did not, or nothing is known."""
    if row.get("status") in ABORTED_STATUSES or row.get("verify_verdict") == "VERIFIED":
        return ""
    if row.get("status") != "ok":
        return f"{row.get('status')}: {row.get('status_reason') or ''}"
    if row.get("verify_verdict"):
        return f"{row['verify_verdict']}: {(row.get('verify_reasons') or ('',))[0]}"
    delta = row.get("delta_ler")
    return f"no gain on validation shots, delta {delta:+.2e}" if delta is not None and delta <= 0 else ""
