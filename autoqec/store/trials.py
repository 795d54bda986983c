"""trials.jsonl of a run, read line by line."""

from __future__ import annotations

from pathlib import Path

from autoqec.contracts.trial import Trial
from autoqec.store import jsonl


def read_trials(path: Path) -> list[Trial]:
    """Return the trials of a file; [] if there is none. Raises ContractError for a damaged line."""
    if not path.is_file():
        return []
    return [Trial.read(line, location=f"{path}:{number}") for number, line in enumerate(jsonl.read(path), start=1)]
