"""Errors that build their sentence from fields and end with the command that mends them."""

from __future__ import annotations


class AutoqecError(Exception):
    """A failure a person can act on.

    what: the fault, in one clause. where: file, field or option it was found in.
    mend: a command (or an edit) that mends it. `exit_code` is the process's exit status.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        head = head.rstrip(".")
        return f"{head}. Mend: {self.hint}" if self.hint else f"{head}."

    def to_json(self) -> dict[str, str | int | None]:
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "mend": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(AutoqecError):
    """The user's file, option or repository is wrong; nothing was written."""


class ManualInterventionRequired(AutoqecError):
    """Only a person can decide how the run goes on."""

    exit_code = 3


class StorageError(AutoqecError):
    """Bytes could not be made durable; the next start re-reads what is there."""

    exit_code = 74


class Interrupted(AutoqecError):
    """Stopped from outside; the run can be resumed."""

    exit_code = 130


class RoundError(AutoqecError):
    """One round ended without a result. `status` is a RoundStatus of the contracts."""

    exit_code = 1

    def __init__(self, status: str, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


class ContractError(AutoqecError):
    """A file or message does not hold what its contract says."""
