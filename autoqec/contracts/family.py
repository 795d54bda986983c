"""Families of circuits: the form in which an env file lists several distances and numbers of rounds."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from autoqec.contracts.base import Contract

MAX_MEMBERS = 16


class CodeMember(Contract):
    """Size of one circuit of a family."""

    distance: int = Field(ge=2, le=63, description="code distance")
    rounds: int = Field(ge=1, le=10_000, description="rounds of syndrome measurement")

    def __str__(self) -> str:
        return f"d={self.distance} r={self.rounds}"


def pair_lists(data: dict[str, Any]) -> dict[str, Any]:
    """Replace lists in `distance` and `rounds` by `members` and the values of `target`.

    Args:
        data: Fields of a code as an env file holds them; returned unchanged without a list.

    Raises:
        ValueError: The lists have different lengths, or `target` is missing or not needed.
    """
    if isinstance(data.get("task"), list):
        raise ValueError("`task` is one name: the circuits of a family have the same gates")
    lists = {key: data[key] for key in ("distance", "rounds") if isinstance(data.get(key), list | tuple)}
    if not lists:
        if "target" in data:
            raise ValueError("`target` belongs to a family: write `distance` or `rounds` as a list")
        return data
    length = max(map(len, lists.values()))
    if any(len(values) != length for values in lists.values()):
        raise ValueError("`distance` and `rounds` are read in pairs: give lists of one length, or one number")
    if length < 2:
        raise ValueError("a family has two circuits or more, each of them once")
    if "members" in data or not isinstance(data.get("target"), dict):
        raise ValueError("a family needs `target: {distance: D, rounds: R}`, one of its circuits")
    pairs = zip(*(lists.get(key, [data.get(key)] * length) for key in ("distance", "rounds")), strict=True)
    members = [{"distance": distance, "rounds": rounds} for distance, rounds in pairs]
    rest = {key: value for key, value in data.items() if key != "target"}
    return {**rest, **CodeMember.model_validate(data["target"]).dump(), "members": members}


def check_target(target: CodeMember, members: tuple[CodeMember, ...]) -> None:
    """Raise ValueError unless a family has two different circuits or more and its target is one of them."""
    if len(members) < 2 or len(set(members)) != len(members):
        raise ValueError("a family has two circuits or more, each of them once")
    if target not in members:
        raise ValueError(f"the target {target} is not among the circuits {', '.join(map(str, members))}")
