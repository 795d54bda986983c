"""Typed entries of a memory. On disk and in YAML the type is spelled `_type`; `type` is read as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from autoqec.contracts.base import canonical_json, first_validation_error
from autoqec.errors import ContractError


def type_field(default: str) -> Any:
    """A `type` that is read from `_type` or `type` and written as `_type`.

    Pydantic takes a field *named* `_type` for a private attribute and never looks at its value.
    """
    return Field(default=default, validation_alias=AliasChoices("_type", "type"), serialization_alias="_type")


class Entry(BaseModel):
    """The general entry: a type and a text. Keys of a type nobody knows here are kept.

    Atomic types: Observation, Action, Feedback, Reflection, Summary, Retrieval.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: str = type_field("")
    content: str = ""

    def dump(self) -> dict[str, Any]:
        """JSON-able, with `_type` first."""
        return self.model_dump(mode="json", by_alias=True)

    def line(self) -> str:
        """The entry as one line of a prompt."""
        return f"{self.type}: {self.content}"


class ExperienceEntry(Entry):
    """One step: the observation acted on, the action, and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["experience"] = type_field("experience")
    content: Literal[""] = Field(default="", exclude=True)
    obs: str
    action: str
    feedback: dict[str, Any]
    metadata: dict[str, Any] = {}

    def line(self) -> str:
        return f"Q: {self.obs} A: {self.action} F: {canonical_json(self.feedback)}"


class ReflectionEntry(Entry):
    """Distilled advice."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["reflection"] = type_field("reflection")
    content: str

    def line(self) -> str:
        return f"Reflection: {self.content}"


class CheatsheetEntry(Entry):
    """A whole cheatsheet; the latest one counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["cheatsheet"] = type_field("cheatsheet")
    content: str

    def line(self) -> str:
        return f"Cheatsheet: {self.content}"


ENTRY_TYPES: dict[str, type[Entry]] = {
    "experience": ExperienceEntry,
    "reflection": ReflectionEntry,
    "cheatsheet": CheatsheetEntry,
}


def discriminator(data: Mapping[str, Any], *, location: str) -> str | None:
    """The value of `_type` or `type`; ContractError where the two disagree."""
    one, other = data.get("_type"), data.get("type")
    if one is not None and other is not None and one != other:
        raise ContractError(
            f"`_type` says {one!r} and `type` says {other!r}", location=location, hint="keep one of them"
        )
    found = one if one is not None else other
    return None if found is None else str(found)


def parse_entry(data: Mapping[str, Any], *, location: str = "memory entry") -> Entry:
    """An entry from JSON; a type nobody knows becomes a general Entry. ContractError names the wrong field."""
    kind = discriminator(data, location=location)
    if not kind:
        raise ContractError("an entry without `_type`", location=location)
    try:
        return ENTRY_TYPES.get(kind, Entry).model_validate({**_without_type(data), "_type": kind})
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=location) from error


def _without_type(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("_type", "type")}
