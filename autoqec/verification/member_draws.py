"""Draws of a family's other circuits: which circuits at which p, from how many shots of which stream."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.env import CodeMember, EnvSpec, StimGeneratorCode
from autoqec.contracts.profiles import Profile
from autoqec.qec.problem import Problem


@dataclass(frozen=True)
class MemberDraw:
    """One circuit of a family at one p.

    Attributes:
        index: Position of the circuit in the env's `other_members`.
        env: The env of this circuit alone.
        size: Its distance and rounds.
    """

    index: int
    env: EnvSpec
    size: CodeMember
    p: float

    def __str__(self) -> str:
        return f"{self.size} p={self.p:g}"

    @property
    def problem(self) -> Problem:
        """The decoding problem."""
        return Problem.from_env(self.env, self.p)

    @property
    def purpose(self) -> str:
        """Name of the draw in the shot stream."""
        return f"member:d={self.size.distance},r={self.size.rounds},p={self.p:g}"

    def shots(self, profile: Profile) -> int:
        """Return the length of the draw: that of the effect draw at the target p, else that of another p."""
        return profile.judge_effect_shots if self.p == self.env.target else profile.judge_point_shots


def member_draws(env: EnvSpec) -> list[MemberDraw]:
    """Return the draws of every circuit of a family but the target, at each p; [] without a family."""
    return [
        MemberDraw(index, each, CodeMember(distance=each.code.distance, rounds=each.code.rounds), p)
        for index, each in enumerate(env.other_members)
        if isinstance(each.code, StimGeneratorCode)
        for p in each.points
        if p is not None
    ]
