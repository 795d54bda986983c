"""Base model of every contract: frozen, strict when written, lenient when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoqec.errors import ContractError


def optional(description: str) -> Any:
    """Return a field that is null unless it is set."""
    return Field(default=None, description=description)


class Contract(BaseModel):
    """A frozen value. Building one forbids unknown keys; `read` keeps those that a later version added."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @classmethod
    def read(cls, data: Any, *, location: str = "") -> Self:
        """Validate `data` as stored on disk; unknown keys are kept in `model_extra`.

        Raises:
            ContractError: Names the file (`location`) and the first wrong field.
        """
        try:
            return cls.model_validate(data, extra="allow")
        except ValidationError as error:
            raise ContractError(first_validation_error(error), location=location or cls.__name__) from error

    def dump(self) -> dict[str, Any]:
        """Return a JSON-compatible dict: every key is present, unknown keys that `read` kept come last."""
        return {**self.model_dump(mode="json"), **(self.model_extra or {})}


def first_validation_error(error: ValidationError, data: Any = None) -> str:
    """Return the first error of a pydantic ValidationError in one clause: `field.path: message`, or the message.

    Args:
        error: The error.
        data: What was validated; without it, paths hold the tags of unions, such as the `kind` of a code.
    """
    found = _relevant_errors(error)
    location, (kind, text) = next(iter(found.items()))
    field = ".".join(str(part) for part in _without_tags(location, data) if not _is_alternative(part))
    message = text.removeprefix("Value error, ")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if not field and kind == "value_error":  # of a contract's own check of several fields
        return f"{message}{more}"
    return f"field `{field or 'value'}`: {message}{more}"


def unknown_key(error: ValidationError, data: Any, model: type[BaseModel]) -> tuple[str, list[str]] | None:
    """Return the first key that the model does not have, and the keys that it has in this place; None without one.

    Args:
        error: The error.
        data: What was validated.
        model: The model that refused it.
    """
    for location, (kind, _) in _relevant_errors(error).items():
        if kind == "extra_forbidden":
            *parents, key = (part for part in _without_tags(location, data) if not _is_alternative(part))
            return ".".join(str(part) for part in (*parents, key)), _known_keys(model, parents)
    return None


def _known_keys(model: type[BaseModel], parents: Iterable[int | str]) -> list[str]:
    """Return the names of the fields of a model, or of the models below it that `parents` lead to."""
    models = [model]
    for part in parents:
        if isinstance(part, str):  # an index of a list leads to no other annotation
            fields = [each.model_fields[part] for each in models if part in each.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return list(dict.fromkeys(name for each in models for name in each.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that an annotation such as `A | list[B] | None` names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


Location = tuple[int | str, ...]  # of an error, with the alternatives of unions, which are no fields


def _relevant_errors(error: ValidationError) -> dict[Location, tuple[str, str]]:
    """Return kind and message of each error by its location, without those of alternatives that were not meant."""
    errors = [(each["loc"], each["type"], each["msg"]) for each in error.errors()]
    places = [(location, kind.endswith("_type")) for location, kind, _ in errors]
    return {
        location: (kind, text) for location, kind, text in errors if not _is_other_alternative(location, kind, places)
    }


def _without_tags(location: Location, data: Any) -> Location:
    """Return the keys of a location, without the tags of unions: values of a mapping that has no such key."""
    parts: list[int | str] = []
    here = data
    for part in location:
        if parts and isinstance(here, dict) and part not in here and part in here.values():
            continue
        parts.append(part)
        try:
            here = here[part]
        except (TypeError, LookupError):  # a field that is missing, or that validation computed
            here = None
    return tuple(parts)


def _is_alternative(part: int | str) -> bool:
    return isinstance(part, str) and ("-" in part or part[:1].isupper() and part.isalpha())


def _is_other_alternative(location: Location, kind: str, places: list[tuple[Location, bool]]) -> bool:
    """Return whether a value is of another type than an alternative of a union, while one of its type is wrong too.

    Args:
        location: Of the error.
        kind: Of the error.
        places: Location of each error, and whether it is one of the value's type.
    """
    union = next((index for index, part in enumerate(location) if _is_alternative(part)), None)
    if union is None or not kind.endswith("_type"):
        return False
    return any(other[:union] == location[:union] and not of_type for other, of_type in places)


def canonical_json(value: Any) -> str:
    """Return canonical JSON of a value: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()
