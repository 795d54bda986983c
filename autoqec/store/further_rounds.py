"""The list of further rounds of a running job: numbered files, written by the run and by the job.

Entry k names the round that the job measures after entry k - 1, or ends the list. The run adds rounds, and either of
them ends the list. The first one to create an entry decides what it is, so that the job begins every round of its list
that it did not end before, and the run knows which rounds were added too late.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from autoqec.contracts.base import canonical_json
from autoqec.contracts.job import FurtherRound
from autoqec.errors import ContractError
from autoqec.store import atomic
from autoqec.store.round_files import read_contract

END = FurtherRound()


class FurtherRounds:
    """The list in a directory, which is created with the first entry. Entries are counted from 1."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, index: int) -> FurtherRound | None:
        """Return an entry; None if there is none yet, or it cannot be read now. A damaged one ends the list."""
        with suppress(OSError):
            # Opening the directory makes a client of NFS forget that the entry did not exist.
            os.close(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            return read_contract(self._directory / str(index), FurtherRound)
        except ContractError:
            return END
        except OSError:
            return None

    def add(self, index: int, entry: FurtherRound) -> FurtherRound:
        """Create an entry unless it exists; return the one that the list has now.

        Raises:
            OSError: It cannot be created.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        # If the answer of a file server is lost, the repeated request finds the entry of the first one.
        with suppress(FileExistsError):
            atomic.create_bytes(self._directory / str(index), f"{canonical_json(entry.dump())}\n".encode())
        return self.read(index) or END
