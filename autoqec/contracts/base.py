"""Base model of every contract: frozen, strict when written, lenient when read."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from autoqec.errors import ContractError


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


def first_validation_error(error: ValidationError) -> str:
    """Return the first error of a pydantic ValidationError in one clause: `field.path: message`, or the message."""
    found = {str(each["loc"]): each for each in error.errors() if not _is_other_alternative(each, error.errors())}
    first = next(iter(found.values()))
    field = ".".join(_field_path(first))
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if not field and first["type"] == "value_error":  # of a contract's own check of several fields
        return f"{message}{more}"
    return f"field `{field or 'value'}`: {message}{more}"


def _field_path(error: ErrorDetails) -> list[str]:
    """Return the path of a wrong field, without the names of a union's alternatives, which are no fields."""
    return [str(part) for part in error["loc"] if not _is_alternative(part)]


def _is_alternative(part: int | str) -> bool:
    return isinstance(part, str) and ("-" in part or part[:1].isupper() and part.isalpha())


def _is_other_alternative(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Return whether a value is of another type than an alternative of a union, while one of its type is wrong too."""
    place = next((index for index, part in enumerate(error["loc"]) if _is_alternative(part)), None)
    if place is None or not error["type"].endswith("_type"):
        return False
    return any(each["loc"][:place] == error["loc"][:place] and not each["type"].endswith("_type") for each in errors)


def canonical_json(value: Any) -> str:
    """Return canonical JSON of a value: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()
