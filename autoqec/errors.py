"""The exceptions that autoqec raises for failures a user can act on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


def similar_names(name: str, known: Iterable[str]) -> str:
    """Return up to three of the known names that are most like `name`, else the first three, separated by commas."""
    from difflib import get_close_matches  # takes 3 ms, and most processes need none

    names = list(known)
    return ", ".join(get_close_matches(name, names, n=3, cutoff=0.5) or names[:3])


class AutoqecError(Exception):
    """A failure with its location and, where one is known, the command or edit that fixes it.

    `str()` is one line, for events, logs and history rows; the command line prints `hint` on its own line.

    Attributes:
        code: Stable identifier of the kind of failure, for programs; a class has one, an instance may narrow it.
        exit_code: Exit status of a command that ends with this error.
        message: What is wrong, in one clause.
        location: File, field or option in which it was found.
        hint: A command or an edit that fixes it.
    """

    code: str = "error"
    exit_code: ClassVar[int] = 2

    def __init__(
        self, message: str, *, location: str | None = None, hint: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.location, self.hint = message, location, hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.summary}; hint: {self.hint}" if self.hint else self.summary

    @property
    def summary(self) -> str:
        """Location and message, without the hint."""
        return (f"{self.location}: {self.message}" if self.location else self.message).rstrip(".")

    def to_json(self) -> dict[str, str | int | None]:
        """Return the object that `--json` prints."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "what": self.message,
            "where": self.location,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(AutoqecError):
    """A file, an option or the repository is not usable; nothing was written."""

    code = "usage"


class ContractError(AutoqecError):
    """A file or message violates its schema."""

    code = "contract"


class ManualInterventionRequired(AutoqecError):  # noqa: N818 (reads as a state, and the documents name it)
    """The run is paused until the user decides how it continues."""

    code = "manual-intervention"
    exit_code = 3


class StorageError(AutoqecError):
    """Data could not be written durably; the next start reads what is on disk."""

    code = "storage"
    exit_code = 74


class InfrastructureError(AutoqecError):
    """The machine killed a process (SIGKILL, out of memory): not a failure of the round, which has no result."""

    code = "infrastructure"
    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class RunInterruptedError(AutoqecError):
    """The process was asked to stop; the run can be resumed."""

    code = "interrupted"
    exit_code = 130


class InternalError(AutoqecError):
    """An unexpected exception: a bug in autoqec, not in the input."""

    code = "internal"
    exit_code = 70  # EX_SOFTWARE of sysexits.h


class RoundError(AutoqecError):
    """One round ended without a result.

    Attributes:
        status: RoundStatus of the round's row; also the code of the error.
        cause: FailureCause of the round's row; None if the status says it all.
    """

    exit_code = 1

    def __init__(
        self,
        status: str,
        message: str,
        *,
        location: str | None = None,
        hint: str | None = None,
        cause: str | None = None,
    ) -> None:
        super().__init__(message, location=location, hint=hint, code=status)
        self.status, self.cause = status, cause
