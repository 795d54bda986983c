"""CheatsheetMemory: one evolving text with its versions, replaced as a whole or by small edits."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.memory.base import MemoryModule, MemoryModuleConfig
from autoqec.extensions.continual.memory.entries import CheatsheetEntry, Entry, type_field


class CheatsheetConfig(MemoryModuleConfig):
    """Config of `CheatsheetMemory`."""

    type: Literal["cheatsheet"] = type_field("cheatsheet")
    versions: int | None = Field(default=20, ge=1, description="number of stored versions; null: all")
    min_keep: float = Field(
        default=0.0, ge=0, le=1, description="reject a rewrite shorter than this share of the old sheet; 0 accepts any"
    )


class CheatsheetMemory(MemoryModule[CheatsheetConfig]):
    """Memory whose current text is the last version."""

    def __init__(self, config: CheatsheetConfig | None = None) -> None:
        super().__init__(config or CheatsheetConfig())
        self._versions: list[CheatsheetEntry] = []

    def _update(self, entry: Entry) -> None:
        if not isinstance(entry, CheatsheetEntry):
            raise ContractError(f"stores a cheatsheet, not {entry.type!r} entries", location="cheatsheet")
        self._versions.append(entry)
        if self.config.versions is not None:
            del self._versions[: -self.config.versions]

    def get_cheatsheet(self) -> str:
        """Return the current text; empty if there is none."""
        return self._versions[-1].content if self._versions else ""

    def set_cheatsheet(self, text: str) -> None:
        """Store a new version, subject to `make_version`."""
        self.update(self.make_version(text))

    def make_version(self, text: str) -> CheatsheetEntry:
        """Return the entry for `text`.

        Raises:
            ContractError: If the text is shorter than `min_keep` times the current one.
        """
        old = self.get_cheatsheet()
        if len(text) < self.config.min_keep * len(old):
            raise ContractError(
                f"the new sheet has {len(text)} characters, the old one {len(old)}; min_keep = {self.config.min_keep}",
                location="cheatsheet",
            )
        return CheatsheetEntry(content=text)

    def versions(self) -> list[str]:
        """Return the stored texts, oldest first."""
        return [version.content for version in self._versions]

    def recall(self) -> list[CheatsheetEntry]:
        """Return the current version, if any."""
        return self._versions[-1:]

    def entries(self) -> list[CheatsheetEntry]:
        """Return all stored versions, oldest first."""
        return list(self._versions)

    def clear(self) -> None:
        """Forget all versions."""
        self._versions.clear()


class Add(Contract):
    """Edit that appends a line."""

    op: Literal["add"]
    text: str = Field(min_length=1)


class Replace(Contract):
    """Edit that replaces a line."""

    op: Literal["replace"]
    old: str = Field(min_length=1)
    new: str


class Remove(Contract):
    """Edit that removes a line."""

    op: Literal["remove"]
    text: str = Field(min_length=1)


Edit = Annotated[Add | Replace | Remove, Field(discriminator="op")]
EDITS_ADAPTER: TypeAdapter[list[Add | Replace | Remove]] = TypeAdapter(Annotated[list[Edit], Field(min_length=1)])

_SHEET = re.compile(r"<cheatsheet>\s*(.*?)\s*</cheatsheet>", re.DOTALL)
_EDITS = re.compile(r"<edits>\s*(.*?)\s*</edits>", re.DOTALL)


def apply_edits(sheet: str, edits: list[Add | Replace | Remove]) -> str:
    """Apply edits to a cheatsheet in order.

    Raises:
        UsageError: If a line to replace or remove does not occur exactly once.
    """
    lines = sheet.splitlines()
    for edit in edits:
        if isinstance(edit, Add):
            lines.append(edit.text)
            continue
        target = edit.text if isinstance(edit, Remove) else edit.old
        if lines.count(target) != 1:
            raise UsageError(
                f"`{target}` occurs {lines.count(target)} times in the sheet, expected once", location=f"edit {edit.op}"
            )
        index = lines.index(target)
        lines[index : index + 1] = [edit.new] if isinstance(edit, Replace) else []
    return "\n".join(lines)


def parse_curation(response: str, sheet: str) -> str:
    """Return the cheatsheet that a curator's reply asks for.

    Args:
        response: Reply with `<cheatsheet>…</cheatsheet>` (the whole text) or `<edits>[…]</edits>`.
        sheet: The current cheatsheet, which edits refer to.

    Raises:
        UsageError: If the reply contains neither, both, or edits that do not apply.
    """
    wholes, deltas = _SHEET.findall(response), _EDITS.findall(response)
    if len(wholes) + len(deltas) != 1:
        raise UsageError(
            f"the reply has {len(wholes)} sheets and {len(deltas)} edit lists, expected one of either",
            location="curation",
        )
    if wholes:
        if not wholes[0]:
            raise UsageError("the sheet is empty", location="curation")
        return str(wholes[0])
    try:
        return apply_edits(sheet, EDITS_ADAPTER.validate_python(json.loads(deltas[0])))
    except json.JSONDecodeError as error:
        raise UsageError(f"the edits are not valid JSON: {error.msg}", location="curation") from error
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location="curation") from error
