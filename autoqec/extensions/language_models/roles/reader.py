"""A language model that comments on mechanical findings: what matters in them, and what to change.

It measures nothing: its comments are an opinion about figures that are shown above them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.messages import Line
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import Message, Request
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.data_blocks import data_block, fit_lines, sanitize
from autoqec.extensions.language_models.roles.role import Role

MAX_FINDINGS_CHARS = 12_000


class Point(Contract):
    """One recommendation, with the rounds that it rests on."""

    what: Line
    rounds: tuple[int, ...] = ()
    change: Line


class ReaderAnswer(Contract):
    """The recommendations, most important first."""

    points: tuple[Point, ...] = Field(max_length=5)


class LlmReader(Role):
    """Comments on findings, given as plain values with their `rounds` or `round`; None without a usable answer."""

    name = "reader"

    def __call__(self, findings: Sequence[dict[str, Any]], topic: str) -> ReaderAnswer | None:
        """Comment on findings about a topic."""
        known = {number for finding in findings for number in finding.get("rounds") or [finding.get("round")]}
        return self._request_with_retry(self.request(findings, topic), lambda answer: _checked_points(answer, known))

    def request(self, findings: Sequence[dict[str, Any]], topic: str) -> Request:
        """Return the prompt for findings about a topic."""
        shown = (sanitize(json.dumps(_without_paths(finding), sort_keys=True), 900) for finding in findings)
        turn = data_block(f"findings: {topic}", fit_lines(shown, MAX_FINDINGS_CHARS))
        return Request(
            role=self.name,
            system=(prompts.READER_PROMPT,),
            messages=(Message(role="user", content=f"{turn}\nWhat matters, and what to change?"),),
            output=ReaderAnswer,
        )


def _without_paths(finding: dict[str, Any]) -> dict[str, Any]:
    """Return the finding without paths of this machine and whole configs."""
    return {name: value for name, value in finding.items() if value and name not in ("see", "config")}


def _checked_points(answer: ReaderAnswer, known: set[Any]) -> ReaderAnswer:
    """Return the answer with its text sanitized. ContractError for a round that no finding names."""
    for point in answer.points:
        unknown = sorted(set(point.rounds) - known)
        if unknown:
            raise ContractError(f"no finding names round {unknown[0]}", location="points.rounds")
    points = [
        point.model_copy(update={"what": sanitize(point.what, 400), "change": sanitize(point.change, 400)})
        for point in answer.points
    ]
    return answer.model_copy(update={"points": tuple(points)})
