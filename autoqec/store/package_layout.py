"""Paths of decoder boards, and of the boards and verified models in the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoqec.installation import PACKAGE_DIR


@dataclass(frozen=True)
class BoardLayout:
    """Files of a decoder board: a directory of its own, or the one in the package."""

    dir: Path

    @property
    def circuits(self) -> Path:
        """`circuits.jsonl`: the pinned circuits."""
        return self.dir / "circuits.jsonl"

    @property
    def decoders(self) -> Path:
        """`decoders.jsonl`: decoders that the user added."""
        return self.dir / "decoders.jsonl"

    @property
    def results(self) -> Path:
        """`results.jsonl`: the measurements."""
        return self.dir / "results.jsonl"

    def circuit(self, sha256: str) -> Path:
        """Return the file of an added circuit."""
        return self.dir / "circuits" / f"{sha256}.stim"

    @property
    def jobs(self) -> Path:
        """`jobs/`: orders of SLURM jobs that may still be at work."""
        return self.dir / "jobs"

    def job(self, name: str) -> BoardJobLayout:
        """Return the files of an order."""
        return BoardJobLayout(self.jobs / name)


@dataclass(frozen=True)
class BoardJobLayout:
    """Files of the SLURM jobs of an order: `jobs/<name>/` of a board."""

    dir: Path

    @property
    def order(self) -> Path:
        """`order.json`: what the jobs measure."""
        return self.dir / "order.json"

    def result(self, index: int) -> Path:
        """Return the file in which a job says how it ended."""
        return self.dir / f"result-{index}.json"


PACKAGED_BOARD = BoardLayout(PACKAGE_DIR / "data" / "board")


@dataclass(frozen=True)
class ModelLayout:
    """Files of a verified model in the package."""

    dir: Path

    @property
    def info(self) -> Path:
        """`model.json`."""
        return self.dir / "model.json"

    @property
    def checkpoint(self) -> Path:
        """`checkpoint.pt`: tensors and plain values."""
        return self.dir / "checkpoint.pt"

    @property
    def env(self) -> Path:
        """`env.yaml`."""
        return self.dir / "env.yaml"

    @property
    def report(self) -> Path:
        """`verification_report.json`."""
        return self.dir / "verification_report.json"

    @property
    def archive(self) -> Path:
        """`run.tar.gz`: the archive of the closed run, with its secret, compressed."""
        return self.dir / "run.tar.gz"


PACKAGED_MODELS = PACKAGE_DIR / "data" / "models"
