"""Reading and writing shots in stim's file formats, chunk by chunk.

Formats: https://github.com/quantumlib/Stim/blob/main/doc/result_formats.md. stim itself parses every chunk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import stim

from autoqec.errors import UsageError
from autoqec.store import atomic

PTB64_GROUP = 64  # shots per group of ptb64
TEXT_FORMATS = ("01", "hits", "dets")
FORMATS = ("b8", "r8", "ptb64", *TEXT_FORMATS)


def guess_format(path: Path) -> str:
    """Return the format that the file's suffix names, else b8."""
    ending = path.suffix.removeprefix(".")
    return ending if ending in FORMATS else "b8"


def read(path: Path, shot_format: str, n_detectors: int, chunk: int) -> Iterator[np.ndarray]:
    """Read detection events chunk by chunk.

    Args:
        path: The file.
        shot_format: One of `FORMATS`.
        n_detectors: Number of detectors per shot.
        chunk: Shots per chunk, a multiple of 64.

    Yields:
        uint8 [<= chunk, ceil(n_detectors / 8)], bit-packed.

    Raises:
        UsageError: The file cannot be read, or does not hold shots of this size in this format.
    """
    try:
        with path.open("rb") as stream, tempfile.TemporaryDirectory(prefix="autoqec-shots-") as temp_dir:
            for raw in _read_chunks(shot_format, stream, n_detectors, chunk, path):
                part = Path(temp_dir) / "part"
                part.write_bytes(raw)
                try:
                    shots = stim.read_shot_data_file(
                        path=part, format=shot_format, num_detectors=n_detectors, bit_packed=True
                    )
                except ValueError as error:
                    raise _format_error(path, shot_format, n_detectors, str(error).strip().splitlines()[0]) from error
                if shot_format == "b8":
                    _check_padding_bits(raw, n_detectors, path)
                yield shots
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", location=str(path), hint="check the path") from error


def _check_padding_bits(raw: bytes, n_bits: int, path: Path) -> None:
    """Raise UsageError if padding bits are set: the file then belongs to another circuit, which stim does not check."""
    last = np.frombuffer(raw, np.uint8).reshape(-1, -(-n_bits // 8))[:, -1]
    if n_bits % 8 and (last >> n_bits % 8).any():
        raise _format_error(path, "b8", n_bits, "bits beyond the last detector are set")


def _read_chunks(shot_format: str, stream: BinaryIO, n_bits: int, chunk: int, path: Path) -> Iterator[bytes]:
    """Yield the file's bytes in pieces of whole shots."""
    if shot_format in TEXT_FORMATS:
        yield from _until_empty(lambda: b"".join(line for _, line in zip(range(chunk), stream, strict=False)))
    elif shot_format == "r8":
        yield from _until_empty(lambda: _read_r8(stream, n_bits, chunk))
    else:
        shots, size = (1, -(-n_bits // 8)) if shot_format == "b8" else (PTB64_GROUP, n_bits * PTB64_GROUP // 8)
        length = os.fstat(stream.fileno()).st_size
        if length % size:
            unit = f"groups of {shots} shots" if shots > 1 else "shots"
            raise _format_error(path, shot_format, n_bits, f"{length} bytes are not a multiple of {size} ({unit})")
        yield from _until_empty(lambda: stream.read(size * (chunk // shots)))


def _until_empty(read_piece: Callable[[], bytes]) -> Iterator[bytes]:
    while piece := read_piece():
        yield piece


def _read_r8(stream: BinaryIO, n_bits: int, chunk: int) -> bytes:
    """Read up to `chunk` shots of r8: bytes count the 0s before each 1; a 1 beyond the last bit ends the shot."""
    encoded, position = bytearray(), 0
    while chunk and (byte := stream.read(1)):
        encoded += byte
        position += byte[0] + (byte[0] < 255)
        if position > n_bits:
            position, chunk = 0, chunk - 1
    return bytes(encoded)


def write(path: Path, shot_format: str, n_observables: int, parts: Iterator[np.ndarray]) -> int:
    """Write predictions atomically.

    Args:
        path: The file.
        shot_format: One of `FORMATS`.
        n_observables: Number of observables per shot.
        parts: bool [n, n_observables] each.

    Returns:
        The number of shots.

    Raises:
        UsageError: The shots do not fill whole groups of ptb64.
    """
    total = 0
    with atomic.replace_file(path) as fd, tempfile.TemporaryDirectory(prefix="autoqec-shots-") as temp_dir:
        for part in parts:
            piece = Path(temp_dir) / "part"
            total += len(part)
            if shot_format == "ptb64" and len(part) % PTB64_GROUP:
                message = f"ptb64 holds groups of {PTB64_GROUP} shots, but there are {total}"
                raise UsageError(message, location=str(path), hint="use --out-format b8")
            stim.write_shot_data_file(data=part, path=piece, format=shot_format, num_observables=n_observables)
            atomic.write_all(fd, piece.read_bytes())
    return total


def _format_error(path: Path, shot_format: str, n_detectors: int, reason: str) -> UsageError:
    message = f"is not a {shot_format} file of shots with {n_detectors} detectors: {reason}"
    return UsageError(
        message, location=str(path), hint="set its format with --in-format, or the env of its circuit with --env"
    )
