"""Files with one contract per line."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from autoqec.contracts.base import Contract
from autoqec.store import jsonl

ContractT = TypeVar("ContractT", bound=Contract)


def read_contracts(path: Path, kind: type[ContractT]) -> list[ContractT]:
    """Return the contract of each line; [] if there is no file. Raises ContractError for a damaged line."""
    if not path.is_file():
        return []
    return [kind.read(line, location=f"{path}:{number}") for number, line in enumerate(jsonl.read(path), start=1)]
