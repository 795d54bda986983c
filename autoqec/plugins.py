"""Finds what extends AutoQEC: commands, ideators, executors, training loops, codes, exports and decoders.

The core imports no extension. An extension, of this distribution or of another one, names its objects under
`[project.entry-points."<group>"]` of its `pyproject.toml`; `autoqec doctor` lists those that cannot be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from autoqec.errors import UsageError

Group = Literal[
    "autoqec.commands",
    "autoqec.ideators",
    "autoqec.executors",
    "autoqec.training_loops",
    "autoqec.codes",
    "autoqec.exports",
    "autoqec.decoders",
]


@dataclass(frozen=True)
class Unusable:
    """An entry point that cannot be used.

    Attributes:
        group: The group of the entry point.
        name: Its name in the group.
        reason: Why it cannot be used, in one line.
    """

    group: str
    name: str
    reason: str


@cache
def _registered(group: Group) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of each name, without importing them; one distribution may be found twice."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, {})[entry.value] = entry
    return {name: tuple(found[name].values()) for name in sorted(found)}


def names(group: Group) -> tuple[str, ...]:
    """Return the registered names of a group, sorted; nothing is imported."""
    return tuple(_registered(group))


def load(group: Group, name: str) -> Any:
    """Import and return the object that is registered under a name.

    Raises:
        UsageError: The name is unknown or registered by two extensions, or its module cannot be imported.
    """
    entries = _registered(group).get(name, ())
    if not entries:
        known = ", ".join(names(group)) or "none"
        raise UsageError(f"unknown name {name!r}", location=group, hint=f"registered: {known}")
    if len(entries) > 1:
        message = f"{name!r} is registered by {' and '.join(entry.value for entry in entries)}"
        raise UsageError(message, location=group, hint="uninstall one of the distributions")
    try:
        return entries[0].load()
    except Exception as error:  # an extension may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}"
        message = f"{name!r} ({entries[0].value}) cannot be imported: {reason}"
        raise UsageError(message, location=group, hint="autoqec doctor") from error


def unusable() -> list[Unusable]:
    """Import everything that is registered, and return what cannot be used."""
    failed = []
    for group in get_args(Group):
        for name in names(group):
            try:
                load(group, name)
            except UsageError as error:
                failed.append(Unusable(group, name, error.message))
    return failed
