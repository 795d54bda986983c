"""The memories: a list, a database of experiences, a cheatsheet and a hybrid, built by the `_type` in their config."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.memory.base import (
    CheatsheetEntry,
    Entry,
    ExperienceEntry,
    ListMemory,
    MemoryModule,
    MemoryModuleConfig,
    discriminator,
    parse_entry,
    read_snapshot,
    type_field,
)
from autoqec.store.files import read_text

_WORD = re.compile(r"[^\W_]+")


class RetrievalService:
    """Index over texts. Callers map the returned indices to their own objects."""

    def __init__(self) -> None:
        self._documents: list[Counter[str]] = []
        self._document_frequency: Counter[str] = Counter()  # number of documents that contain a word

    def build_index(self, texts: Iterable[str]) -> None:
        """Replace the index."""
        self._documents, self._document_frequency = [], Counter()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Append a text to the index."""
        words = Counter(word.lower() for word in _WORD.findall(text))
        self._documents.append(words)
        self._document_frequency.update(words.keys())

    def query_top_k(self, query: str, k: int) -> list[int]:
        """Return the indices of the k most similar texts, best first, ties by index; fewer if the index is smaller."""
        wanted = self._weights(Counter(word.lower() for word in _WORD.findall(query)))
        scores = [(self._cosine(wanted, document), index) for index, document in enumerate(self._documents)]
        scores.sort(key=lambda score: (-score[0], score[1]))
        return [index for _, index in scores[: max(k, 0)]]

    def _weights(self, words: Counter[str]) -> dict[str, float]:
        # Smoothed, so that words in every document still count and equal texts are the most similar ones.
        total = len(self._documents)
        weights = {
            word: (1 + math.log(count)) * (1 + math.log((1 + total) / (1 + self._document_frequency[word])))
            for word, count in sorted(words.items())
        }
        norm = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        return {word: weight / norm for word, weight in weights.items()}

    def _cosine(self, wanted: dict[str, float], document: Counter[str]) -> float:
        if not wanted.keys() & document.keys():
            return 0.0
        found = self._weights(document)
        # Rounded, so that ties do not depend on the last bit of a sum.
        return round(sum(weight * found.get(word, 0.0) for word, weight in wanted.items()), 12)


class HistoryListConfig(MemoryModuleConfig):
    """Config of `HistoryList`."""

    type: Literal["history_list"] = type_field("history_list")
    max_length: int | None = Field(default=100, ge=1, description="null: unbounded")


class HistoryList(ListMemory[HistoryListConfig]):
    """The most recent entries of any type, in order."""

    config_type = HistoryListConfig

    @property
    def history_list(self) -> list[Entry]:
        """The stored entries, oldest first."""
        return self._stored


class ExperienceDBConfig(MemoryModuleConfig):
    """Config of `ExperienceDBMemory`."""

    type: Literal["experience_db"] = type_field("experience_db")
    max_length: int | None = Field(default=None, ge=1, description="null: unbounded; otherwise the oldest are dropped")


class ExperienceDBMemory(ListMemory[ExperienceDBConfig]):
    """Memory of (obs, action, feedback, metadata), which retrieves steps by similarity of the observation."""

    config_type, entry_type = ExperienceDBConfig, ExperienceEntry

    def __init__(self, config: ExperienceDBConfig | None = None) -> None:
        super().__init__(config)
        self._index = RetrievalService()

    def _update(self, entry: Entry) -> None:
        full = len(self._stored) == self.config.max_length
        super()._update(entry)
        if full:
            self._index.build_index(experience.obs for experience in self._stored)
        else:
            self._index.add(self._stored[-1].obs)

    def search(self, query: str, k: int) -> list[ExperienceEntry]:
        """Return the k experiences whose observation is most similar to `query`, best first, ties by age."""
        return [self._stored[index] for index in self._index.query_top_k(query, k)]

    def clear(self) -> None:
        """Forget all experiences and rebuild the index."""
        super().clear()
        self._index.build_index(())


class CheatsheetConfig(MemoryModuleConfig):
    """Config of `CheatsheetMemory`."""

    type: Literal["cheatsheet"] = type_field("cheatsheet")
    versions: int | None = Field(default=20, ge=1, description="number of stored versions; null: all")
    min_keep: float = Field(
        default=0.0, ge=0, le=1, description="reject a rewrite shorter than this share of the old sheet; 0 accepts any"
    )


class CheatsheetMemory(ListMemory[CheatsheetConfig]):
    """One evolving text with its versions; the current text is the last one."""

    config_type, entry_type, limit_field = CheatsheetConfig, CheatsheetEntry, "versions"

    def get_cheatsheet(self) -> str:
        """Return the current text; empty if there is none."""
        return self._stored[-1].content if self._stored else ""

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
        return [version.content for version in self._stored]

    def recall(self) -> list[CheatsheetEntry]:
        """Return the current version, if any."""
        return self._stored[-1:]


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


class HybridConfig(MemoryModuleConfig):
    """Config of `HybridMemory`, one block per part."""

    type: Literal["hybrid"] = type_field("hybrid")
    cheatsheet: CheatsheetConfig = CheatsheetConfig()
    experience_db: ExperienceDBConfig = ExperienceDBConfig()
    notes: HistoryListConfig = HistoryListConfig()


class HybridMemory(MemoryModule[HybridConfig]):
    """Memory that routes each entry to the part for its type; all other types go to the notes."""

    config_type = HybridConfig

    def __init__(self, config: HybridConfig | None = None) -> None:
        super().__init__(config)
        self.cheatsheet = CheatsheetMemory(self.config.cheatsheet)
        self.experiences = ExperienceDBMemory(self.config.experience_db)
        self.notes = HistoryList(self.config.notes)

    def _update(self, entry: Entry) -> None:
        if isinstance(entry, CheatsheetEntry):
            self.cheatsheet.update(entry)
        elif isinstance(entry, ExperienceEntry):
            self.experiences.update(entry)
        else:
            self.notes.update(entry)

    def get_cheatsheet(self) -> str:
        """Return the current cheatsheet."""
        return self.cheatsheet.get_cheatsheet()

    def set_cheatsheet(self, text: str) -> None:
        """Store a new version of the cheatsheet, subject to its config."""
        self.update(self.cheatsheet.make_version(text))

    def retrieve_examples(self, query: str, k: int) -> list[ExperienceEntry]:
        """Return the k experiences most similar to `query`."""
        return self.experiences.search(query, k)

    def recall(self) -> list[Entry]:
        """Return cheatsheet, notes, then experiences."""
        return [*self.cheatsheet.recall(), *self.notes.recall(), *self.experiences.recall()]

    def entries(self) -> list[Entry]:
        """Return all entries of all parts."""
        return [*self.cheatsheet.entries(), *self.notes.entries(), *self.experiences.entries()]

    def clear(self) -> None:
        """Clear all parts."""
        for part in (self.cheatsheet, self.experiences, self.notes):
            part.clear()


Memory = MemoryModule[Any]

MODULES: dict[str, type[Memory]] = {
    "history_list": HistoryList,
    "cheatsheet": CheatsheetMemory,
    "experience_db": ExperienceDBMemory,
    "hybrid": HybridMemory,
}


def parse_memory_config(
    data: Mapping[str, Any] | MemoryModuleConfig, *, location: str = "memory"
) -> MemoryModuleConfig:
    """Parse a memory's config, selected by `_type` or `type`.

    Raises:
        UsageError: If the type is unknown or a field is invalid.
    """
    if isinstance(data, MemoryModuleConfig):
        return data
    kind = discriminator(data, location=location)
    if kind not in MODULES:
        problem = f"unknown memory type {kind!r}" if kind else "the memory has no `_type`"
        raise UsageError(problem, location=location, hint=f"one of {', '.join(MODULES)}")
    rest = {key: value for key, value in data.items() if key not in ("_type", "type")}
    try:
        return MODULES[kind].config_type.model_validate({**rest, "_type": kind})
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location=location) from error


def build_memory(config: Mapping[str, Any] | MemoryModuleConfig) -> Memory:
    """Return the empty memory of a config.

    Raises:
        UsageError: If the type is unknown.
    """
    parsed = parse_memory_config(config)
    if parsed.type not in MODULES:
        raise UsageError(f"unknown memory type {parsed.type!r}", location="memory", hint=f"one of {', '.join(MODULES)}")
    return MODULES[parsed.type](parsed)


memory_factory = build_memory  # both names are public


def load_memory(path: Path | str) -> Memory:
    """Return the memory of a snapshot file, with the config it was saved under.

    Raises:
        ContractError: If the file is unreadable or incomplete.
    """
    try:
        text = read_text(path, what="memory snapshot", hint="name another file; one that does not exist starts empty")
    except UsageError as error:
        raise ContractError(error.message, location=error.location, hint=error.hint) from error
    config, entries = read_snapshot(text, location=str(path))
    memory = build_memory(config)
    for number, entry in enumerate(entries, start=2):
        memory.update(parse_entry(entry, location=f"{path}:{number}"))
    return memory
