"""Decoding of recorded shots by several decoders on the same shots, in slices of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from autoqec.contracts.recorded import RecordedBlock
from autoqec.errors import UsageError
from autoqec.qec.backends import Backend
from autoqec.qec.recorded.block_test import BlockCounts, BlockEffect
from autoqec.qec.recorded.shots import RecordedShots
from autoqec.qec.sampling import Shots
from autoqec.qec.stats import error_mask


def wrong_shots(
    recorded: RecordedShots, decoders: Mapping[str, Backend], skip: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """Decode the shots of all blocks in their order, chunk by chunk.

    Args:
        recorded: The shots.
        decoders: Decoders by name. Predictions of other decoders that every block names are scored too.
        skip: Shots at the start that are not decoded.

    Yields:
        For each decoder bool [n], the shots that it predicts wrongly.

    Raises:
        UsageError: A file is not readable, or predictions have another number of shots.
    """
    blocks = recorded.layout.blocks
    others = [name for name in blocks[0].predictions if all(name in block.predictions for block in blocks)]
    for block in blocks:
        for shots, predicted in _with_predictions(recorded, block, [name for name in others if name not in decoders]):
            start, skip = min(skip, len(shots)), max(skip - len(shots), 0)
            if start == len(shots):
                continue
            events, flips = shots.detection_events[start:], shots.observables[start:]
            wrong = {name: error_mask(decoder.decode(events), flips) for name, decoder in decoders.items()}
            yield wrong | {name: error_mask(part[start:], flips) for name, part in predicted.items()}


def _with_predictions(
    recorded: RecordedShots, block: RecordedBlock, names: list[str]
) -> Iterator[tuple[Shots, dict[str, np.ndarray]]]:
    """Read shots of a block with predictions of other decoders; UsageError if their numbers of shots differ."""
    others = {name: recorded.predictions(block, name) for name in names}
    for shots in recorded.chunks(block):
        predicted = {name: next(parts, None) for name, parts in others.items()}
        for name, part in predicted.items():
            if part is None or len(part) != len(shots):
                raise _other_number(block.predictions[name])
        yield shots, {name: part for name, part in predicted.items() if part is not None}
    for name, parts in others.items():
        if next(parts, None) is not None:
            raise _other_number(block.predictions[name])


def first_events(recorded: RecordedShots, shots: int) -> Iterator[np.ndarray]:
    """Read the detection events of the first shots, bit-packed, chunk by chunk."""
    for block in recorded.layout.blocks:
        for part in recorded.chunks(block):
            if shots <= 0:
                return
            yield part.detection_events[:shots]
            shots -= len(part)


def compare(slices: Iterator[dict[str, np.ndarray]], reference: str) -> tuple[dict[str, int], dict[str, BlockEffect]]:
    """Compare all decoders with a reference, block by block.

    Args:
        slices: For each block and decoder bool [n], the shots that it predicts wrongly.
        reference: Name of the reference.

    Returns:
        Errors of each decoder, and the gain of each other decoder over the reference.
    """
    errors: dict[str, int] = {}
    counts: dict[str, BlockCounts] = {}
    for wrong in slices:
        for name, mask in wrong.items():
            errors[name] = errors.get(name, 0) + int(mask.sum())
            if name != reference:
                counts.setdefault(name, BlockCounts()).add(wrong[reference], mask)
    return errors, {name: found.effect() for name, found in counts.items()}


def time_slices(parts: Iterator[dict[str, np.ndarray]], size: int) -> Iterator[dict[str, np.ndarray]]:
    """Regroup chunks into slices of `size` successive shots; a shorter rest is left out."""
    held: dict[str, list[np.ndarray]] = {}
    count = 0
    for part in parts:
        for name, wrong in part.items():
            held.setdefault(name, []).append(wrong)
        count += len(next(iter(part.values())))
        if count < size:
            continue
        joined = {name: np.concatenate(values) for name, values in held.items()}
        full = count // size * size
        for start in range(0, full, size):
            yield {name: wrong[start : start + size] for name, wrong in joined.items()}
        held, count = {name: [wrong[full:]] for name, wrong in joined.items()}, count - full


def _other_number(name: str) -> UsageError:
    return UsageError(
        "has another number of shots than the detection events", location=name, hint="use predictions of the same shots"
    )
