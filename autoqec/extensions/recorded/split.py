"""Division of recorded shots by time: training, validation, and sealed test blocks of which each candidate gets a part.

The parts are disjoint, so a candidate that was chosen after the verdicts of earlier ones is still tested on shots that
had no influence on it (docs/adr/0018-sealed-blocks-are-spent.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoqec.errors import UsageError
from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.extensions.recorded.shots import CHUNK, SILENT, Progress, RecordedShots, Span
from autoqec.qec.sampling import Shots, pack, unpack
from autoqec.store import atomic

MIN_PART_BLOCKS = 10  # with fewer blocks not even a perfect candidate reaches the level of the last part
EVENTS, OBSERVABLES = "detection_events.b8", "observables.b8"
PARTS = ("train", "validation")


@dataclass(frozen=True)
class Split:
    """Numbers of blocks; all blocks have `block_shots` shots, and a shorter rest at the end is not used."""

    block_shots: int
    train_blocks: int
    validation_blocks: int
    part_blocks: int
    candidates: int

    @classmethod
    def of(cls, code: RecordedShotsCode, location: str = "env field `code`") -> Split:
        """Divide the shots that the manifest counts.

        Raises:
            UsageError: There are too few shots, or the estimated model was made from more than the training blocks.
        """
        manifest = code.files
        total = sum(manifest.shots) // code.block_shots
        train, validation = int(total * code.train), int(total * code.validation)
        part = (total - train - validation) // code.candidates
        if not train or not validation or part < MIN_PART_BLOCKS:
            raise UsageError(
                f"{sum(manifest.shots)} shots are {total} blocks: {train} for training, {validation} for validation "
                f"and {part} for each of {code.candidates} candidates, which needs {MIN_PART_BLOCKS}",
                location=location,
                hint="lower `block_shots` or `candidates`, or record more shots",
            )
        if manifest.estimated_shots > train * code.block_shots:
            raise UsageError(
                f"the model was estimated from the first {manifest.estimated_shots} shots, and only "
                f"{train * code.block_shots} are training shots",
                location=location,
                hint="write the env again with `autoqec add-env --recorded --force`",
            )
        return cls(code.block_shots, train, validation, part, code.candidates)

    @property
    def train(self) -> Span:
        """Training shots, the first in time."""
        return 0, self.train_blocks * self.block_shots

    @property
    def validation(self) -> Span:
        """Validation shots, after the training shots."""
        return self.train[1], self.train[1] + self.validation_blocks * self.block_shots

    def part(self, attempt_index: int) -> Span | None:
        """Return the sealed shots of the candidate at `attempt_index` (from 1); None if all parts are spent."""
        if attempt_index > self.candidates:
            return None
        size = self.part_blocks * self.block_shots
        start = self.validation[1] + (attempt_index - 1) * size
        return start, start + size


def write_visible(
    recorded: RecordedShots, code: RecordedShotsCode, directory: Path, progress: Progress = SILENT
) -> None:
    """Copy the training and validation shots into `directory`, the only recorded shots that a round can read."""
    split, counts = Split.of(code), code.files.shots
    for name, span in zip(PARTS, (split.train, split.validation), strict=True):
        part = directory / name
        atomic.make_dir(part)
        with (
            atomic.storage_errors(part),
            (part / EVENTS).open("wb") as events,
            (part / OBSERVABLES).open("wb") as flips,
        ):
            parts = recorded.span(counts, span, split.block_shots, CHUNK, progress)
            for shots in progress.watch(f"copying {name} shots", parts, span[1] - span[0], len):
                events.write(np.ascontiguousarray(shots.detection_events).tobytes())
                flips.write(pack(shots.observables).tobytes())


@dataclass(frozen=True)
class VisibleShots:
    """Training or validation shots in the files that `write_visible` wrote; read in part, at each call.

    They are not mapped: pages of a mapped file count as memory of the process that trains, which has a limit.

    Attributes:
        directory: Directory of the files.
        shots: Number of shots.
        n_detectors: Number of detectors.
        n_observables: Number of observables.
    """

    directory: Path
    shots: int
    n_detectors: int
    n_observables: int

    @classmethod
    def open(cls, directory: Path, part: str, n_detectors: int, n_observables: int) -> VisibleShots:
        """Find the shots of a part, one of `PARTS`.

        Raises:
            UsageError: A file is missing, or is not of this circuit.
        """
        counts = []
        for name, bits in ((EVENTS, n_detectors), (OBSERVABLES, n_observables)):
            path, width = directory / part / name, -(-bits // 8)
            if not path.is_file() or not path.stat().st_size or path.stat().st_size % width:
                raise UsageError("does not hold shots of this env", location=str(path), hint="start a new run")
            counts.append(path.stat().st_size // width)
        if counts[0] != counts[1]:
            raise UsageError(
                "its files disagree in their shots", location=str(directory / part), hint="start a new run"
            )
        return cls(directory / part, counts[0], n_detectors, n_observables)

    def __len__(self) -> int:
        return self.shots

    def first(self, n: int) -> Shots:
        """Return the first `n` shots, or all if there are fewer."""
        return self._shots(lambda path, width: np.fromfile(path, np.uint8, n * width).reshape(-1, width))

    def draw(self, n: int, seed: int) -> Shots:
        """Draw `n` shots with replacement; the same seed gives the same shots."""
        rows = np.random.default_rng(seed).integers(self.shots, size=n)
        return self._shots(lambda path, width: _read_rows(path, width, rows))

    def _shots(self, read: Callable[[Path, int], np.ndarray]) -> Shots:
        events = read(self.directory / EVENTS, -(-self.n_detectors // 8))
        flips = read(self.directory / OBSERVABLES, -(-self.n_observables // 8))
        return Shots(events, unpack(flips, self.n_observables).astype(bool))


def _read_rows(path: Path, width: int, rows: np.ndarray) -> np.ndarray:
    """Read rows of a file, uint8 [len(rows), width], in the order of the file."""
    result = np.empty((len(rows), width), np.uint8)
    with path.open("rb", buffering=0) as stream:
        for index in np.argsort(rows):
            content = os.pread(stream.fileno(), width, int(rows[index]) * width)
            result[index] = np.frombuffer(content, np.uint8)
    return result
