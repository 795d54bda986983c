"""Base model of every contract: frozen, strict when written, lenient when read."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

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
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"field `{field}`: {message}{more}" if field else f"{message}{more}"


def canonical_json(value: Any) -> str:
    """Return canonical JSON of a value: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()
