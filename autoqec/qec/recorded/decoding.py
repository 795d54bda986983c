"""Decoding of recorded shots by several decoders on the same shots, in slices of time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from autoqec.contracts.recorded import RecordedBlock
from autoqec.errors import UsageError
from autoqec.qec.backends import Backend
from autoqec.qec.recorded.shots import RecordedShots
from autoqec.qec.stats import error_mask


def wrong_shots(
    recorded: RecordedShots, block: RecordedBlock, decoders: Mapping[str, Backend]
) -> Iterator[dict[str, np.ndarray]]:
    """Decode the shots of one block chunk by chunk.

    Args:
        recorded: The shots.
        block: One of its blocks.
        decoders: Decoders by name. Predictions of others that the block names are scored too.

    Yields:
        For each decoder bool [n], the shots that it predicts wrongly.

    Raises:
        UsageError: A file is not readable, or predictions have another number of shots.
    """
    others = {name: recorded.predictions(block, name) for name in block.predictions if name not in decoders}
    for shots in recorded.chunks(block):
        wrong = {
            name: error_mask(decoder.decode(shots.detection_events), shots.observables)
            for name, decoder in decoders.items()
        }
        for name, parts in others.items():
            predicted = next(parts, None)
            if predicted is None or len(predicted) != len(shots):
                raise _other_number(block.predictions[name])
            wrong[name] = error_mask(predicted, shots.observables)
        yield wrong
    for name, parts in others.items():
        if next(parts, None) is not None:
            raise _other_number(block.predictions[name])


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


def recorded_slices(
    recorded: RecordedShots, decoders: Mapping[str, Backend], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Decode all blocks in slices of time, in their order; a slice lies within one block."""
    return itertools.chain.from_iterable(
        time_slices(wrong_shots(recorded, block, decoders), size) for block in recorded.layout.blocks
    )


def _other_number(name: str) -> UsageError:
    return UsageError(
        "has another number of shots than the detection events", location=name, hint="use predictions of the same shots"
    )
