"""Builds memories by the `_type` in their config, empty or from a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.memory.base import MemoryModule, MemoryModuleConfig, read_snapshot
from autoqec.extensions.continual.memory.cheatsheet import CheatsheetConfig, CheatsheetMemory
from autoqec.extensions.continual.memory.entries import discriminator, parse_entry
from autoqec.extensions.continual.memory.experience_db import ExperienceDBConfig, ExperienceDBMemory
from autoqec.extensions.continual.memory.history_list import HistoryList, HistoryListConfig
from autoqec.extensions.continual.memory.hybrid import HybridConfig, HybridMemory
from autoqec.store.files import read_text

Memory = MemoryModule[Any]

MODULES: dict[str, tuple[type[MemoryModuleConfig], type[Memory]]] = {
    "history_list": (HistoryListConfig, HistoryList),
    "cheatsheet": (CheatsheetConfig, CheatsheetMemory),
    "experience_db": (ExperienceDBConfig, ExperienceDBMemory),
    "hybrid": (HybridConfig, HybridMemory),
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
        return MODULES[kind][0].model_validate({**rest, "_type": kind})
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
    return MODULES[parsed.type][1](parsed)


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
