"""What a page shows of a round beyond its row: loss curve and diff, bounded in size."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import AutoqecError, UsageError
from autoqec.reporting.loss import Point, curve
from autoqec.reporting.text import paragraphs
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.system.git import Repo

ADDED_BY_ESCAPING = 4  # about as many characters as HTML escaping adds to one of < > & ' "


@dataclass(frozen=True)
class RoundDetails:
    """Verification report, loss curve and diff of one round; diff_note: why the diff is missing or truncated."""

    verification: VerifyReport | None
    curve: tuple[Point, ...]
    diff: str
    diff_note: str


class DetailsReader:
    """Reads the details of a run's rounds; `diff_chars` bounds the escaped size of each diff."""

    def __init__(self, layout: RunLayout, diff_chars: int) -> None:
        self._layout, self._diff_chars = layout, diff_chars
        try:
            self._repo: Repo | None = Repo.discover(layout.repo_root)
        except UsageError:
            self._repo = None

    def read(self, row: HistoryRow, verification: VerifyReport | None) -> RoundDetails:
        """Details of the round that a row describes."""
        diff, note = self._diff(row)
        return RoundDetails(verification, curve(self._layout.round(row.round).train_log), diff, note)

    def _diff(self, row: HistoryRow) -> tuple[str, str]:
        """Changes to the editable modules since the (first) parent, and a note."""
        if row.commit_sha is None:
            return "", "This round has no commit."
        if self._repo is None:
            return "", "The repository of this run was not found."
        try:
            text = self._repo.diff_text(f"{row.commit_sha}^", row.commit_sha, [EDITABLE_MODULES])
        except AutoqecError:
            return "", "The commit of this round is not in this repository."
        text = paragraphs(text, 50 * self._diff_chars)
        if not text:
            return "", "No change to the editable modules: the parent's code and configuration were run again."
        return self._truncate(text, row.commit_sha)

    def _truncate(self, text: str, commit: str) -> tuple[str, str]:
        lines, size = text.split("\n"), 0
        for number, line in enumerate(lines):
            size += len(line) + 1 + ADDED_BY_ESCAPING * sum(line.count(char) for char in "<>&'\"")
            if size > self._diff_chars:
                note = f"The first {number} of {len(lines)} lines; all of them: git show {commit[:12]}"
                return "\n".join(lines[:number]), note
        return text, ""
