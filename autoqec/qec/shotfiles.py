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
COMPRESSED = {b"\x1f\x8b\x08": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zX": "xz"}
SNIFFED = 4096  # bytes at the start of a file that tell text from binary


def guess_format(path: Path) -> str:
    """Return the format that the file's suffix names, else b8."""
    ending = path.suffix.removeprefix(".")
    return ending if ending in FORMATS else "b8"


def read(path: Path, shot_format: str, n_bits: int, chunk: int, kind: str = "detectors") -> Iterator[np.ndarray]:
    """Read shots chunk by chunk.

    Args:
        path: The file.
        shot_format: One of `FORMATS`.
        n_bits: Number of bits per shot.
        chunk: Shots per chunk, a multiple of 64.
        kind: What a bit of a shot is: `detectors`, `observables` or `measurements`.

    Yields:
        uint8 [<= chunk, ceil(n_bits / 8)], bit-packed.

    Raises:
        UsageError: The file cannot be read, or does not hold shots of this size in this format.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe could be read once only
        raise UsageError("is not a regular file", location=str(path), hint="write the shots to a file first")
    try:
        with path.open("rb") as stream, tempfile.TemporaryDirectory(prefix="autoqec-shots-") as temp_dir:
            check_content(path, stream, shot_format, n_bits, kind)
            for raw in _read_chunks(shot_format, stream, n_bits, chunk, path, kind):
                part = Path(temp_dir) / "part"
                part.write_bytes(raw)
                try:
                    shots = stim.read_shot_data_file(
                        path=part, format=shot_format, bit_packed=True, **{f"num_{kind}": n_bits}
                    )
                except ValueError as error:
                    reason = str(error).strip().splitlines()[0]
                    raise format_error(path, shot_format, n_bits, reason, kind) from error
                if shot_format == "b8":
                    stored = np.frombuffer(raw, np.uint8).reshape(len(shots), -1)  # stim clears the padding
                    check_padding_bits(stored, n_bits, path, kind)
                yield shots
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", location=str(path), hint="check the path") from error


def count_shots(path: Path, shot_format: str, n_bits: int) -> int | None:
    """Return the number of shots of `n_bits` bits in a file whose size shows it, of format 01, b8 or ptb64; else None.

    The content is not checked.
    """
    if not path.is_file() or shot_format not in ("01", "b8", "ptb64") or not n_bits:
        return None
    size = path.stat().st_size
    return {"01": size // (n_bits + 1), "b8": size // -(-n_bits // 8), "ptb64": 8 * size // n_bits}[shot_format]


def check_content(path: Path, stream: BinaryIO, shot_format: str, n_bits: int, kind: str) -> None:
    """Raise UsageError if a file is compressed, or is text where the format is binary; rewinds the stream."""
    head = stream.read(SNIFFED)
    stream.seek(0)
    for magic, name in COMPRESSED.items():
        if head.startswith(magic):
            raise UsageError(f"is compressed ({name})", location=str(path), hint=f"decompress {path.name} first")
    if shot_format not in TEXT_FORMATS and len(head) > 1 and not set(head) - set(b"01\r\n") and b"\n" in head:
        raise format_error(path, shot_format, n_bits, "the content is text of 0 and 1, as in format 01", kind)


def check_padding_bits(shots: np.ndarray, n_bits: int, path: Path, kind: str) -> None:
    """Raise UsageError if padding bits of b8 are set: the file then belongs to another circuit.

    stim does not check them, and some of its builds clear them: pass the bytes of the file.
    """
    if n_bits % 8 and (shots[:, -1] >> n_bits % 8).any():
        raise format_error(path, "b8", n_bits, f"bits beyond the last of the {kind} are set", kind)


def _read_chunks(shot_format: str, stream: BinaryIO, n_bits: int, chunk: int, path: Path, kind: str) -> Iterator[bytes]:
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
            reason = f"{length} bytes are not a multiple of {size} ({unit})"
            raise format_error(path, shot_format, n_bits, reason, kind)
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


def format_error(path: Path, shot_format: str, n_bits: int, reason: str, kind: str = "detectors") -> UsageError:
    """Return the error of a file that does not hold shots of `n_bits` bits in a format."""
    bits = kind.removesuffix("s") if n_bits == 1 else kind
    message = f"is not a {shot_format} file of shots with {n_bits} {bits}: {reason}"
    hint = "the file extension names the format (or --in-format of decode); check that the file belongs to the circuit"
    return UsageError(message, location=str(path), hint=hint)
