"""Cheatsheet: one evolving text with its versions, changed whole or by small edits; a bad curation changes nothing."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from autoqec.continual.memory.base import MemoryModule, MemoryModuleConfig
from autoqec.continual.memory.entries import CheatsheetEntry, Entry, type_field
from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import ContractError, UsageError


class CheatsheetConfig(MemoryModuleConfig):
    type: Literal["cheatsheet"] = type_field("cheatsheet")
    versions: int | None = Field(default=20, ge=1, description="how many versions are kept; null: all")
    min_keep: float = Field(
        default=0.0, ge=0, le=1, description="refuse a rewrite shorter than this share of the old sheet; 0: take any"
    )


class CheatsheetMemory(MemoryModule[CheatsheetConfig]):
    """The sheet is the last version; version numbers are 1-based and never reused."""

    def __init__(self, config: CheatsheetConfig | None = None) -> None:
        super().__init__(config or CheatsheetConfig())
        self._versions: list[CheatsheetEntry] = []

    def _update(self, entry: Entry) -> None:
        if not isinstance(entry, CheatsheetEntry):
            raise ContractError(f"holds a cheatsheet, not {entry.type!r} entries", location="cheatsheet")
        self._versions.append(entry)
        if self.config.versions is not None:
            del self._versions[: -self.config.versions]

    def get_cheatsheet(self) -> str:
        return self._versions[-1].content if self._versions else ""

    def set_cheatsheet(self, text: str) -> None:
        """A new version, under the guard of `admit`."""
        self.update(self.make_version(text))

    def make_version(self, text: str) -> CheatsheetEntry:
        """The entry for `text`. ContractError where it shrinks below `min_keep`: a collapse is no curation."""
        old = self.get_cheatsheet()
        if len(text) < self.config.min_keep * len(old):
            raise ContractError(
                f"the new sheet has {len(text)} characters, the old one {len(old)}; min_keep = {self.config.min_keep}",
                location="cheatsheet",
            )
        return CheatsheetEntry(content=text)

    def versions(self) -> list[str]:
        """Texts that are kept, oldest first."""
        return [version.content for version in self._versions]

    def recall(self) -> list[CheatsheetEntry]:
        return self._versions[-1:]

    def entries(self) -> list[CheatsheetEntry]:
        return list(self._versions)

    def clear(self) -> None:
        self._versions.clear()


class Add(Contract):
    op: Literal["add"]
    text: str = Field(min_length=1)


class Replace(Contract):
    op: Literal["replace"]
    old: str = Field(min_length=1)
    new: str


class Remove(Contract):
    op: Literal["remove"]
    text: str = Field(min_length=1)


Edit = Annotated[Add | Replace | Remove, Field(discriminator="op")]
EDITS_ADAPTER: TypeAdapter[list[Add | Replace | Remove]] = TypeAdapter(Annotated[list[Edit], Field(min_length=1)])

_SHEET = re.compile(r"<cheatsheet>\s*(.*?)\s*</cheatsheet>", re.DOTALL)
_EDITS = re.compile(r"<edits>\s*(.*?)\s*</edits>", re.DOTALL)


def apply_edits(sheet: str, edits: list[Add | Replace | Remove]) -> str:
    """The sheet after the edits, in order. UsageError where a line to replace or remove is not in it exactly once."""
    lines = sheet.splitlines()
    for edit in edits:
        if isinstance(edit, Add):
            lines.append(edit.text)
            continue
        target = edit.text if isinstance(edit, Remove) else edit.old
        if lines.count(target) != 1:
            raise UsageError(f"`{target}` stands {lines.count(target)} times in the sheet", location=f"edit {edit.op}")
        place = lines.index(target)
        lines[place : place + 1] = [edit.new] if isinstance(edit, Replace) else []
    return "\n".join(lines)


def parse_curation(response: str, sheet: str) -> str:
    """The sheet a curator's reply asks for: `<cheatsheet>…</cheatsheet>` whole, or `<edits>[…]</edits>`.

    UsageError where the reply holds neither, both, or edits that do not fit: the caller keeps the old sheet.
    """
    wholes, deltas = _SHEET.findall(response), _EDITS.findall(response)
    if len(wholes) + len(deltas) != 1:
        raise UsageError(f"{len(wholes)} sheets and {len(deltas)} edit lists where one is due", location="curation")
    if wholes:
        if not wholes[0]:
            raise UsageError("an empty sheet", location="curation")
        return str(wholes[0])
    try:
        return apply_edits(sheet, EDITS_ADAPTER.validate_python(json.loads(deltas[0])))
    except json.JSONDecodeError as error:
        raise UsageError(f"the edits are no JSON: {error.msg}", location="curation") from error
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location="curation") from error
