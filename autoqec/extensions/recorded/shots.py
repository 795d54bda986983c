"""Recorded shots, read in place, block by block and chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import stim

from autoqec.contracts.recorded import RecordedBlock, RecordedFile, RecordedLayout
from autoqec.errors import UsageError
from autoqec.extensions.recorded import progress
from autoqec.extensions.recorded.ideal import check_ideal, read_model
from autoqec.extensions.recorded.layout import PLAIN_LAYOUT, find_layout
from autoqec.extensions.recorded.progress import Reading
from autoqec.qec import shotfiles
from autoqec.qec.codes import Source
from autoqec.qec.sampling import Shots, unpack

CHUNK = 16_384  # shots held in memory at a time; a multiple of 64


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

    def files(self, reading: Reading) -> tuple[RecordedFile, ...]:
        """Hash all files; large ones in segments, so that an interrupted hash can be resumed."""
        return tuple(self._hashed(name, reading) for name in self.names)

    def _hashed(self, name: str, reading: Reading) -> RecordedFile:
        path = self.directory / name
        size = path.stat().st_size
        segment = progress.SEGMENT if size > progress.SEGMENT else None
        digest = progress.hash_file(path, name, segment, reading)
        return RecordedFile(path=name, bytes=size, sha256=digest, segment_bytes=segment)

    def _read(self, name: str, n_bits: int, kind: str) -> Iterator[np.ndarray]:
        path = self.directory / name
        shot_format = shotfiles.guess_format(path)
        if shot_format == "b8":
            return read_chunks(path, n_bits, kind)
        return shotfiles.read(path, shot_format, n_bits, CHUNK, kind)


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
