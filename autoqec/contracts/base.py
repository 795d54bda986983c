"""What every contract shares: frozen, strict when written, lenient when read."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from autoqec.errors import ContractError


class Contract(BaseModel):
    """A frozen value. Building one forbids unknown keys; `read` keeps those a later version added."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def read(cls, data: Any, *, location: str = "") -> Self:
        """Validate `data` as stored on disk; unknown keys are kept in `model_extra`.

        Raises ContractError naming file (`where`) and first wrong field.
        """
        try:
            return cls.model_validate(data, extra="allow")
        except ValidationError as error:
            raise ContractError(first_validation_error(error), location=location or cls.__name__) from error

    def dump(self) -> dict[str, Any]:
        """JSON-able dict, every key present (absent values are null), unknown keys that `read` kept at its end."""
        return {**self.model_dump(mode="json"), **(self.model_extra or {})}


def first_validation_error(error: ValidationError) -> str:
    """The first fault of a pydantic error in one clause: `field.path: message`."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "value"
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"field `{field}`: {message}{more}"


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
