"""Typed entries of a memory; the type is written as `_type` and read from `_type` or `type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from autoqec.contracts.base import canonical_json, first_validation_error
from autoqec.errors import ContractError


def type_field(default: str) -> Any:
    """Return a field `type` that is read from `_type` or `type` and written as `_type`.

    Pydantic treats a field *named* `_type` as a private attribute and ignores its value.
    """
    return Field(default=default, validation_alias=AliasChoices("_type", "type"), serialization_alias="_type")


class Entry(BaseModel):
    """General entry: a type and a text. Fields of unknown types are kept.

    Atomic types: Observation, Action, Feedback, Reflection, Summary, Retrieval.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: str = type_field("")
    content: str = ""

    def dump(self) -> dict[str, Any]:
        """Return the entry as JSON-able values, with `_type` first."""
        return self.model_dump(mode="json", by_alias=True)

    def line(self) -> str:
        """Return the entry as one line of a prompt."""
        return f"{self.type}: {self.content}"


class ExperienceEntry(Entry):
    """One step: the observation acted on, the action and the feedback."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["experience"] = type_field("experience")
    content: Literal[""] = Field(default="", exclude=True)
    obs: str
    action: str
    feedback: dict[str, Any]
    metadata: dict[str, Any] = {}

    def line(self) -> str:
        """Return the step as one line of a prompt."""
        return f"Q: {self.obs} A: {self.action} F: {canonical_json(self.feedback)}"


class ReflectionEntry(Entry):
    """Advice distilled from an episode."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["reflection"] = type_field("reflection")
    content: str

    def line(self) -> str:
        """Return the advice as one line of a prompt."""
        return f"Reflection: {self.content}"


class CheatsheetEntry(Entry):
    """A complete cheatsheet; the latest entry is the current one."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["cheatsheet"] = type_field("cheatsheet")
    content: str

    def line(self) -> str:
        """Return the cheatsheet as text of a prompt."""
        return f"Cheatsheet: {self.content}"


ENTRY_TYPES: dict[str, type[Entry]] = {
    "experience": ExperienceEntry,
    "reflection": ReflectionEntry,
    "cheatsheet": CheatsheetEntry,
}


def discriminator(data: Mapping[str, Any], *, location: str) -> str | None:
    """Return the value of `_type` or `type`, or None.

    Raises:
        ContractError: If the two disagree.
    """
    underscored, plain = data.get("_type"), data.get("type")
    if underscored is not None and plain is not None and underscored != plain:
        raise ContractError(
            f"`_type` is {underscored!r} and `type` is {plain!r}", location=location, hint="keep one of them"
        )
    kind = underscored if underscored is not None else plain
    return None if kind is None else str(kind)


def parse_entry(data: Mapping[str, Any], *, location: str = "memory entry") -> Entry:
    """Parse an entry from JSON values; an unknown type becomes a general Entry.

    Raises:
        ContractError: Names the invalid field.
    """
    kind = discriminator(data, location=location)
    if not kind:
        raise ContractError("the entry has no `_type`", location=location)
    try:
        return ENTRY_TYPES.get(kind, Entry).model_validate({**_without_type(data), "_type": kind})
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=location) from error


def _without_type(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("_type", "type")}
