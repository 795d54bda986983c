"""Shots in stim's file formats, a chunk at a time.

https://github.com/quantumlib/Stim/blob/main/doc/result_formats.md. stim itself reads and writes every chunk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import stim

from autoqec.errors import InputError
from autoqec.store import atomic

GROUP = 64  # shots that ptb64 keeps together
LINES = ("01", "hits", "dets")
FORMATS = ("b8", "r8", "ptb64", *LINES)


def format_of(path: Path) -> str:
    """By the file's ending; b8 where that says nothing."""
    ending = path.suffix.removeprefix(".")
    return ending if ending in FORMATS else "b8"


def read(path: Path, form: str, n_detectors: int, chunk: int) -> Iterator[np.ndarray]:
    """Detection events, uint8 [<= chunk, ceil(n_detectors / 8)]; chunk: a multiple of GROUP.

    InputError where the file is not there, or does not hold shots of that many detectors in that format.
    """
    try:
        with path.open("rb") as stream, tempfile.TemporaryDirectory(prefix="autoqec-shots-") as place:
            for raw in _cut(form, stream, n_detectors, chunk, path):
                part = Path(place) / "part"
                part.write_bytes(raw)
                try:
                    shots = stim.read_shot_data_file(path=part, format=form, num_detectors=n_detectors, bit_packed=True)
                except ValueError as error:
                    raise _no_shots(path, form, n_detectors, str(error).strip().splitlines()[0]) from error
                if form == "b8":
                    _refuse_wider(raw, n_detectors, path)
                yield shots
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), mend="name a file of shots") from error


def _refuse_wider(raw: bytes, n_bits: int, path: Path) -> None:
    """InputError where a shot's last byte says more than the last detectors: stim would read past that in silence."""
    last = np.frombuffer(raw, np.uint8).reshape(-1, -(-n_bits // 8))[:, -1]
    if n_bits % 8 and (last >> n_bits % 8).any():
        raise _no_shots(path, "b8", n_bits, "bits beyond the last detector are set")


def _cut(form: str, stream: BinaryIO, n_bits: int, chunk: int, path: Path) -> Iterator[bytes]:
    """The file's bytes in pieces of whole shots."""
    if form in LINES:
        yield from _pieces(lambda: b"".join(line for _, line in zip(range(chunk), stream, strict=False)))
    elif form == "r8":
        yield from _pieces(lambda: _run_lengths(stream, n_bits, chunk))
    else:
        shots, size = (1, -(-n_bits // 8)) if form == "b8" else (GROUP, n_bits * GROUP // 8)
        length = os.fstat(stream.fileno()).st_size
        if length % size:
            why = f"{length} bytes are no whole number of {shots if shots > 1 else ''} shots of {size} bytes"
            raise _no_shots(path, form, n_bits, why.replace("  ", " "))
        yield from _pieces(lambda: stream.read(size * (chunk // shots)))


def _pieces(take: Callable[[], bytes]) -> Iterator[bytes]:
    while piece := take():
        yield piece


def _run_lengths(stream: BinaryIO, n_bits: int, chunk: int) -> bytes:
    """Up to `chunk` shots of r8: bytes count the zeros before each one; a one beyond the last bit ends the shot."""
    taken, at = bytearray(), 0
    while chunk and (byte := stream.read(1)):
        taken += byte
        at += byte[0] + (byte[0] < 255)
        if at > n_bits:
            at, chunk = 0, chunk - 1
    return bytes(taken)


def write(path: Path, form: str, n_observables: int, parts: Iterator[np.ndarray]) -> int:
    """Predictions, bool [n, n_observables] a part; how many shots. The file appears whole, or not at all."""
    total = 0
    with atomic.replacing(path) as fd, tempfile.TemporaryDirectory(prefix="autoqec-shots-") as place:
        for part in parts:
            piece = Path(place) / "part"
            total += len(part)
            if form == "ptb64" and len(part) % GROUP:
                what = f"ptb64 holds shots in groups of {GROUP}, these are {total}"
                raise InputError(what, where=str(path), mend="choose --out-format b8")
            stim.write_shot_data_file(data=part, path=piece, format=form, num_observables=n_observables)
            atomic.write_all(fd, piece.read_bytes())
    return total


def _no_shots(path: Path, form: str, n_detectors: int, why: str) -> InputError:
    what = f"is no {form} file of shots with {n_detectors} detectors: {why}"
    return InputError(what, where=str(path), mend="name its format with --in-format, or the env its circuit belongs to")
