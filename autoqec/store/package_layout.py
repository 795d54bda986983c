"""Paths of decoder boards, and of the boards and verified models in the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoqec.installation import PACKAGE_DIR
from autoqec.store.below import Below


@dataclass(frozen=True)
class BoardLayout:
    """Files of a decoder board: a directory of its own, or the one in the package."""

    dir: Path

    circuits = Below("circuits.jsonl")  # the pinned circuits
    decoders = Below("decoders.jsonl")  # decoders that the user added
    results = Below("results.jsonl")  # the measurements
    jobs = Below("jobs")  # orders of SLURM jobs that may still be at work

    def circuit(self, sha256: str) -> Path:
        """Return the file of an added circuit."""
        return self.dir / "circuits" / f"{sha256}.stim"

    def job(self, name: str) -> BoardJobLayout:
        """Return the files of an order."""
        return BoardJobLayout(self.jobs / name)


@dataclass(frozen=True)
class BoardJobLayout:
    """Files of the SLURM jobs of an order: `jobs/<name>/` of a board."""

    dir: Path

    order = Below("order.json")  # what the jobs measure

    def result(self, index: int) -> Path:
        """Return the file in which a job says how it ended."""
        return self.dir / f"result-{index}.json"


PACKAGED_BOARD = BoardLayout(PACKAGE_DIR / "data" / "board")


@dataclass(frozen=True)
class ModelLayout:
    """Files of a verified model in the package."""

    dir: Path

    info = Below("model.json")
    checkpoint = Below("checkpoint.pt")  # tensors and plain values
    env = Below("env.yaml")
    report = Below("verification_report.json")
    archive = Below("run.tar.gz")  # the archive of the closed run, with its secret, compressed


PACKAGED_MODELS = PACKAGE_DIR / "data" / "models"
