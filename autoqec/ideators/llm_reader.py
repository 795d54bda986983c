"""A language model on top of mechanical findings: what matters in them, and the one thing to change.

Nothing is measured anew: what it says is an opinion about figures that stand above it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.messages import Line
from autoqec.errors import ContractError
from autoqec.ideators import prompts
from autoqec.ideators.llm_roles import Role
from autoqec.llm.base import Message, Request

About = Literal["how a run searched", "why rounds ended as they did"]
FINDINGS_CHARS = 12_000


class Point(Contract):
    """One thing worth doing. rounds: the numbers it rests on."""

    what: Line
    rounds: tuple[int, ...] = ()
    change: Line


class ReaderAnswer(Contract):
    points: tuple[Point, ...] = Field(max_length=5)


class LlmReader(Role):
    """Findings, as plain values with their `rounds` or `round`, -> at most five points, or None."""

    name = "reader"

    def __call__(self, findings: Sequence[dict[str, Any]], about: About) -> ReaderAnswer | None:
        known = {number for one in findings for number in one.get("rounds") or [one.get("round")]}
        return self._ask(self.request(findings, about), lambda answer: _grounded(answer, known))

    def request(self, findings: Sequence[dict[str, Any]], about: About) -> Request:
        shown = (prompts.clean(json.dumps(_bare(one), sort_keys=True), 900) for one in findings)
        turn = prompts.fence(f"findings: {about}", prompts.fit(shown, FINDINGS_CHARS))
        return Request(
            role=self.name,
            system=(prompts.READER,),
            messages=(Message(role="user", content=f"{turn}\nWhat matters, and what to change?"),),
            output=ReaderAnswer,
        )


def _bare(finding: dict[str, Any]) -> dict[str, Any]:
    """Without places of this machine and whole configs."""
    return {name: value for name, value in finding.items() if value and name not in ("see", "config")}


def _grounded(answer: ReaderAnswer, known: set[Any]) -> ReaderAnswer:
    """The answer with its words made harmless. ContractError: a round that no finding names."""
    for point in answer.points:
        unknown = sorted(set(point.rounds) - known)
        if unknown:
            raise ContractError(f"no finding names round {unknown[0]}", where="points.rounds")
    clean = [
        point.model_copy(update={"what": prompts.clean(point.what, 400), "change": prompts.clean(point.change, 400)})
        for point in answer.points
    ]
    return answer.model_copy(update={"points": tuple(clean)})
