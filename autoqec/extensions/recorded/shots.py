"""Reads recorded shots in place, chunk by chunk: a block of files, or a span over all of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import stim

from autoqec.contracts.events import OnEvent, ShotsRead, ignore
from autoqec.errors import UsageError
from autoqec.extensions.recorded.code import RecordedBlock, RecordedFile, RecordedLayout
from autoqec.extensions.recorded.layout import PLAIN_LAYOUT, check_ideal, find_layout, read_model
from autoqec.qec import shotfiles
from autoqec.qec.codes import Source
from autoqec.qec.sampling import Shots, unpack

CHUNK = 16_384  # shots held in memory at a time; a multiple of 64
HASHED = 1 << 20  # bytes read at a time
SKIPPING = "skipping shots of other parts"

Span = tuple[int, int]  # first shot, and the shot after the last
Part = TypeVar("Part")


class Progress:
    """Reports, as `ShotsRead`, when another hundredth of something has been read."""

    def __init__(self, on_event: OnEvent = ignore) -> None:
        self._on_event = on_event
        self._reported: tuple[str, int] | None = None

    def report(self, what: str, done: int, total: int | None) -> None:
        """Report an amount that was read; without a total, in units of `HASHED`."""
        share = (what, done // HASHED if total is None else 100 * done // max(total, 1))
        if share != self._reported:
            self._reported = share
            self._on_event(ShotsRead(what=what, done=done, total=total))

    def watch(self, what: str, parts: Iterable[Part], total: int | None, size: Callable[[Part], int]) -> Iterator[Part]:
        """Yield parts unchanged and report how much of `total` they are together."""
        done = 0
        for part in parts:
            yield part
            done += size(part)
            self.report(what, done, total)


SILENT = Progress()


@dataclass(frozen=True, eq=False)
class RecordedShots:
    """Recorded shots of one circuit.

    Attributes:
        directory: Directory of the files.
        layout: Model and blocks.
        source: The circuit, or the detector error model if there is no circuit.
    """

    directory: Path
    layout: RecordedLayout
    source: Source

    @classmethod
    def open(cls, directory: Path) -> RecordedShots:
        """Find the layout of a directory and read its model.

        Raises:
            UsageError: The layout is not known, stim cannot read the model, or an ideal circuit contradicts it.
        """
        layout = find_layout(directory)
        path = directory / layout.model
        source = read_model(path)
        if not (directory / PLAIN_LAYOUT).is_file():
            check_ideal(source, layout.model, directory)
        if source.num_detectors == 0 or source.num_observables == 0:
            message = f"has {source.num_detectors} detectors and {source.num_observables} observables"
            raise UsageError(message, location=str(path), hint="add DETECTOR and OBSERVABLE_INCLUDE lines")
        noiseless = source.without_noise() == source if isinstance(source, stim.Circuit) else source.num_errors == 0
        if noiseless:
            message, hint = (
                "has no noise, so that nothing can be decoded with it",
                "use the noisy circuit, or a .dem file",
            )
            raise UsageError(message, location=str(path), hint=hint)
        return cls(directory, layout, source)

    def chunks(self, block: RecordedBlock) -> Iterator[Shots]:
        """Read the shots of one block in order.

        Yields:
            At most `CHUNK` shots each.

        Raises:
            UsageError: A file is not readable, not in its format, of another circuit, or of another number of shots.
        """
        if block.detection_events is not None and block.observables is not None:
            events = self._read(block.detection_events, self.source.num_detectors, "detectors")
            flips = self._read(block.observables, self.source.num_observables, "observables")
            for event_part, flip_part in _aligned(events, flips, block.detection_events, block.observables):
                yield Shots(event_part, unpack(flip_part, self.source.num_observables).astype(bool))
        else:
            yield from self.converted(block)

    def expected_shots(self, block: RecordedBlock) -> int | None:
        """Return the number of shots of a block by the size of its file; None if its format does not tell."""
        if block.detection_events is not None:
            name, n_bits = block.detection_events, self.source.num_detectors
        else:
            assert block.measurements is not None and isinstance(self.source, stim.Circuit)
            name, n_bits = block.measurements, self.source.num_measurements
        path = self.directory / name
        bytes_per_shot = {"b8": -(-n_bits // 8), "01": n_bits + 1}.get(shotfiles.guess_format(path))
        return None if bytes_per_shot is None else path.stat().st_size // bytes_per_shot

    def converted(self, block: RecordedBlock) -> Iterator[Shots]:
        """Convert the raw measurements of one block to detection events and observable flips.

        Yields:
            At most `CHUNK` shots each.

        Raises:
            UsageError: As `chunks`, or the circuit uses sweep bits and there is no file of them.
        """
        circuit = self.source
        if not isinstance(circuit, stim.Circuit) or block.measurements is None:
            raise ValueError("only measurements of a circuit can be converted")
        converter = circuit.compile_m2d_converter()
        measured = self._read(block.measurements, circuit.num_measurements, "measurements")
        pairs: Iterator[tuple[np.ndarray, np.ndarray | None]]
        if circuit.num_sweep_bits == 0:
            pairs = ((part, None) for part in measured)
        elif block.sweep_bits is None:
            raise UsageError(
                f"the circuit uses {circuit.num_sweep_bits} sweep bits, but there is no file of them",
                location=str(self.directory / block.measurements),
                hint="add `sweep_bits` to the block; without them the initial states are wrong",
            )
        else:
            # stim has no kind for sweep bits; they are stored as measurements are
            swept = self._read(block.sweep_bits, circuit.num_sweep_bits, "measurements")
            pairs = _aligned(measured, swept, block.measurements, block.sweep_bits)
        for bits, sweep in pairs:
            events, flips = converter.convert(
                measurements=bits, sweep_bits=sweep, separate_observables=True, bit_packed=True
            )
            yield Shots(events, unpack(flips, circuit.num_observables).astype(bool))

    def predictions(self, block: RecordedBlock, name: str) -> Iterator[np.ndarray]:
        """Read predicted observable flips of another decoder, bool [<= CHUNK, n_observables] each."""
        for part in self._read(block.predictions[name], self.source.num_observables, "observables"):
            yield unpack(part, self.source.num_observables).astype(bool)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model and of every file of every block."""
        return tuple(
            dict.fromkeys((self.layout.model, *(name for block in self.layout.blocks for name in block.files)))
        )

    def files(self, progress: Progress) -> tuple[RecordedFile, ...]:
        """Hash all files."""
        return tuple(
            RecordedFile(
                path=name,
                bytes=(self.directory / name).stat().st_size,
                sha256=hash_file(self.directory / name, name, progress),
            )
            for name in self.names
        )

    def span(
        self,
        counts: Sequence[int],
        span: Span,
        size: int,
        part: int | None = None,
        progress: Progress = SILENT,
    ) -> Iterator[Shots]:
        """Read the shots of a span in items of equal size, in their order; files that end before it are not opened.

        Args:
            counts: Shots of each block of files, as in the manifest.
            span: The shots to read, counted over all files.
            size: Shots per item; a shorter rest is left out.
            part: Shots that are held and yielded at a time, so that memory does not depend on `size`; None for whole
                items.
            progress: Reports the reading of files before and after the span; both are read to count their shots.

        Yields:
            The items, each in parts of `part` shots and a shorter last one.

        Raises:
            UsageError: A file is not readable, or holds another number of shots than the manifest counts.
        """
        part = min(part or size, size)
        sizes = itertools.cycle([part] * (size // part) + [size % part] * (size % part > 0))
        span = span[0], span[0] + (span[1] - span[0]) // size * size
        held, needed = [], next(sizes)
        for shots in self._chunks_of(counts, span, progress):
            held.append(shots)
            if sum(map(len, held)) < needed:
                continue
            joined, start = concatenated(held), 0
            while len(joined) - start >= needed:
                rows = slice(start, start + needed)
                yield Shots(joined.detection_events[rows], joined.observables[rows])
                start, needed = start + needed, next(sizes)
            held = [Shots(joined.detection_events[start:], joined.observables[start:])]

    def _chunks_of(self, counts: Sequence[int], span: Span, progress: Progress) -> Iterator[Shots]:
        """Read the shots of a span, chunk by chunk; see `span`."""
        start = 0
        for block, count in zip(self.layout.blocks, counts, strict=True):
            if start < span[1] and start + count > span[0]:
                position, others = start, max(span[0] - start, 0) + max(start + count - span[1], 0)
                skipped = 0
                for chunk in self.chunks(block):
                    low, high = (min(max(edge - position, 0), len(chunk)) for edge in span)
                    position += len(chunk)
                    skipped += len(chunk) - (high - low)
                    if low == high:
                        progress.report(SKIPPING, skipped, others)
                    else:
                        yield Shots(chunk.detection_events[low:high], chunk.observables[low:high])
                if position != start + count:
                    name = block.detection_events or block.measurements
                    message = f"holds {position - start} shots, the manifest counts {count}"
                    raise UsageError(message, location=str(self.directory / str(name)), hint="restore the file")
            start += count

    def _read(self, name: str, n_bits: int, kind: str) -> Iterator[np.ndarray]:
        path = self.directory / name
        shot_format = shotfiles.guess_format(path)
        if shot_format == "b8":
            return read_chunks(path, n_bits, kind)
        return shotfiles.read(path, shot_format, n_bits, CHUNK, kind)


def concatenated(parts: Sequence[Shots]) -> Shots:
    """Return the shots of all parts, in their order."""
    return Shots(
        np.concatenate([part.detection_events for part in parts]), np.concatenate([part.observables for part in parts])
    )


def hash_file(path: Path, name: str, progress: Progress = SILENT) -> str:
    """Return the SHA-256 of a file, which has another name in reports."""
    total, digest, done = path.stat().st_size, hashlib.sha256(), 0
    with path.open("rb") as stream:
        while content := stream.read(HASHED):
            digest.update(content)
            done += len(content)
            progress.report(f"hashing {name}", done, total)
    return digest.hexdigest()


def read_chunks(path: Path, n_bits: int, kind: str) -> Iterator[np.ndarray]:
    """Read a b8 file chunk by chunk. A memory map would keep all pages that were read in the resident memory.

    Yields:
        uint8 [<= CHUNK, ceil(n_bits / 8)], bit-packed.

    Raises:
        UsageError: The file does not hold shots of `n_bits` bits.
    """
    with path.open("rb") as stream:
        shotfiles.check_content(path, stream, "b8", n_bits, kind)
    width = -(-n_bits // 8)
    size = path.stat().st_size
    if size % width:
        raise shotfiles.format_error(path, "b8", n_bits, f"{size} bytes are not a multiple of {width} (shots)", kind)
    with path.open("rb") as stream:
        while (content := np.fromfile(stream, np.uint8, CHUNK * width)).size:
            part = content[: content.size // width * width].reshape(-1, width)
            shotfiles.check_padding_bits(part, n_bits, path, kind)
            yield part


def _aligned(
    first: Iterator[np.ndarray], second: Iterator[np.ndarray], first_name: str, second_name: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield chunks of two files of the same shots; UsageError if their numbers of shots differ."""
    shots = [0, 0]
    mismatch = False
    for a, b in itertools.zip_longest(first, second):
        shots[0] += 0 if a is None else len(a)
        shots[1] += 0 if b is None else len(b)
        mismatch = mismatch or shots[0] != shots[1]
        if not mismatch:
            yield a, b
    if mismatch:
        raise UsageError(
            f"has {shots[0]} shots, but {second_name} has {shots[1]}",
            location=first_name,
            hint="use files of the same recording; one of them may be truncated or belong to another circuit",
        )
