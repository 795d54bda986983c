r"""Losses of a round: train.log, one line `<step>\t<loss>` per optimizer step, and progress.csv by phase.

The only writer and parser of train.log.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autoqec.store import atomic

MAX_BYTES = 64 * 2**20  # read of one log; the file comes from an untrusted process
SAMPLE_BYTES = 512  # read at each position of a log that is sampled
_LINE = re.compile(rb"(\d{1,12})\t([-+0-9.eE]{1,24}|nan)")

Entry = tuple[int, float]


@dataclass(frozen=True)
class TrainLog:
    """Parsed content of a train.log.

    Attributes:
        entries: (step, loss) in file order; the loss is NaN where training diverged.
    """

    entries: tuple[Entry, ...] = ()

    @property
    def losses(self) -> list[float]:
        """Losses in file order."""
        return [loss for _, loss in self.entries]

    @property
    def finite(self) -> tuple[Entry, ...]:
        """Entries whose loss is a finite number."""
        return tuple(entry for entry in self.entries if math.isfinite(entry[1]))


def append(path: Path, first_step: int, losses: Sequence[float]) -> None:
    """Append one line per loss; steps count from `first_step`."""
    with path.open("a", encoding="utf-8") as stream:
        for step, loss in enumerate(losses, start=first_step):
            stream.write(f"{step}\t{f'{loss:.9g}' if math.isfinite(loss) else 'nan'}\n")


def parse(data: bytes) -> TrainLog:
    """Parse the content of a log. Lines that are not a step and a loss are skipped."""
    return _parse_lines(data.splitlines())


def read(path: Path, *, positions: int | None = None) -> TrainLog:
    """Read a log; an empty result if the file cannot be read.

    Args:
        path: The log.
        positions: If given, read at most this many evenly spaced samples of SAMPLE_BYTES each instead of a large file.
    """
    try:
        with atomic.open_regular(path) as stream:
            size = path.stat().st_size
            if positions is None or size <= positions * 2 * SAMPLE_BYTES:
                return parse(stream.read(MAX_BYTES))
            lines: list[bytes] = []
            for position in range(0, size, size // positions):
                stream.seek(position)
                lines += stream.read(SAMPLE_BYTES).split(b"\n")[1:-1]  # the first and the last may be incomplete
            return _parse_lines(lines)
    except OSError:
        return TrainLog()


def _parse_lines(lines: Sequence[bytes]) -> TrainLog:
    entries: list[Entry] = []
    for line in lines:
        if match := _LINE.fullmatch(line.strip()):
            with suppress(ValueError):  # e.g. 1e-e
                entries.append((int(match[1]), float(match[2])))
    return TrainLog(tuple(entries))


MAX_PROGRESS_BYTES = 8 * 2**20
LossCurve = list[tuple[int, float]]


def read_loss_curves(path: Path) -> dict[str, LossCurve]:
    """Read the mean losses of intervals of iterations, by phase.

    Args:
        path: progress.csv of a round; it may have been written by untrusted code.

    Returns:
        Phase -> (updates so far, mean loss) in the order of the file. Invalid rows are skipped; a missing file gives an
        empty dict.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_PROGRESS_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    curves: dict[str, LossCurve] = {}
    try:
        for row in csv.DictReader(text.splitlines()):
            phase, step, loss = row.get("Phase"), row.get("CumUpdates"), row.get("lossAverage")
            point = _point(step, loss)
            if phase and point is not None:
                curves.setdefault(phase, []).append(point)
    except csv.Error:
        pass  # keep the rows before the malformed one
    return curves


def _point(step: str | None, loss: str | None) -> tuple[int, float] | None:
    try:
        point = int(step or ""), float(loss or "")
    except ValueError:
        return None
    return point if math.isfinite(point[1]) else None
