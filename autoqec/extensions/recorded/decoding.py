"""Decoding of recorded shots by several decoders on the same shots, in slices of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoqec.contracts.recorded import RecordedBlock
from autoqec.errors import UsageError
from autoqec.extensions.recorded.block_comparison import BlockCounts, BlockEffect
from autoqec.extensions.recorded.progress import SILENT, Reading, Saved
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.extensions.recorded.split import Span
from autoqec.qec.backends import Backend
from autoqec.qec.sampling import Shots
from autoqec.qec.stats import error_mask

SKIPPING = "skipping shots that are not decoded"
SAVED_SHOTS = 1 << 16  # decoded between two saves


def wrong_shots(
    recorded: RecordedShots, decoders: Mapping[str, Backend], skip: int = 0, reading: Reading = SILENT
) -> Iterator[dict[str, np.ndarray]]:
    """Decode the shots of all blocks in their order, chunk by chunk.

    Args:
        recorded: The shots.
        decoders: Decoders by name. Predictions of other decoders that every block names are scored too.
        skip: Shots at the start that are not decoded.
        reading: Reports how many of them were read.

    Yields:
        For each decoder bool [n], the shots that it predicts wrongly.

    Raises:
        UsageError: A file is not readable, or predictions have another number of shots.
    """
    blocks, to_skip = recorded.layout.blocks, skip
    others = [name for name in recorded.layout.predicted_by if name not in decoders]
    for block in blocks:
        for shots, predicted in _with_predictions(recorded, block, others):
            start, skip = min(skip, len(shots)), max(skip - len(shots), 0)
            if start == len(shots):
                reading.report(SKIPPING, to_skip - skip, to_skip)
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


def compare(
    recorded: RecordedShots,
    decoders: Mapping[str, Backend],
    reference: str,
    span: Span,
    size: int,
    reading: Reading = SILENT,
    **inputs: Any,
) -> tuple[dict[str, int], dict[str, BlockEffect]]:
    """Decode recorded shots, and compare all decoders with a reference, slice by slice.

    Args:
        recorded: The shots.
        decoders: Decoders by name. Predictions of other decoders that every block names are scored too.
        reference: Name of the reference among them.
        span: First shot to decode, and the number of all shots.
        size: Successive shots per slice, which is one block of the test; a shorter rest at the end is left out.
        reading: Reports and resumes the decoding.
        inputs: What else the decoders depend on than the model of the shots, as JSON can hold it.

    Returns:
        Errors of each decoder, and the gain of each other decoder over the reference.
    """
    skip, total = span
    errors = SliceErrors(reference, size)
    sources = [recorded.directory / name for name in recorded.names]
    inputs |= {"layout": recorded.layout.dump(), "names": [*decoders], "reference": reference}
    saved = reading.saved("decoding", sources, skip=skip, size=size, **inputs)
    saved_shots = errors.load(saved)
    for wrong in wrong_shots(recorded, decoders, skip + saved_shots, reading):
        errors.add(wrong)
        reading.report("decoding", errors.shots, total - skip)
        if errors.shots - saved_shots >= max(SAVED_SHOTS, len(errors)):
            saved_shots = errors.shots
            errors.save(saved)
    return errors.results()


class SliceErrors:
    """Paired errors of several decoders and a reference, in slices of successive shots.

    Attributes:
        shots: Shots so far.
    """

    def __init__(self, reference: str, size: int) -> None:
        self.reference, self.size, self.shots = reference, size, 0
        self._names: list[str] = []
        self._slices: list[np.ndarray] = []  # int64 [n_names, 4] each: fixed, broken, errors of reference and decoder

    def __len__(self) -> int:
        return len(self._slices)

    def add(self, wrong: Mapping[str, np.ndarray]) -> None:
        """Add the next shots: for each decoder bool [n], those that it predicts wrongly."""
        self._names = [*wrong]
        masks = np.array([*wrong.values()])
        first = 0
        while first < masks.shape[1]:
            if self.shots == len(self) * self.size:
                self._slices.append(np.zeros((len(masks), 4), np.int64))
            part = masks[:, first : first + len(self) * self.size - self.shots]
            baseline = part[self._names.index(self.reference)]
            columns = (baseline & ~part, part & ~baseline, np.broadcast_to(baseline, part.shape), part)
            self._slices[-1] += np.stack([column.sum(1) for column in columns], axis=1)
            self.shots += part.shape[1]
            first += part.shape[1]

    def results(self) -> tuple[dict[str, int], dict[str, BlockEffect]]:
        """Return the errors of each decoder, and the gain of each other one, in all complete slices; empty if none."""
        complete = self.shots // self.size
        if not complete:
            return {}, {}
        table = np.array(self._slices[:complete])
        errors = {name: int(table[:, index, 3].sum()) for index, name in enumerate(self._names)}
        effects = {
            name: BlockCounts.of(table[:, index], complete * self.size).effect()
            for index, name in enumerate(self._names)
            if name != self.reference
        }
        return errors, effects

    def load(self, saved: Saved) -> int:
        """Continue from what an interrupted command has saved; return the number of its shots."""
        found = saved.load(shots=(), slices=(-1, -1, 4), names=(-1,))
        if found:
            names = found["names"].tobytes().decode().split("\n")
            slices, shots = found["slices"], int(found["shots"])
            if len(slices) == -(-shots // self.size) and slices.shape[1] == len(names) and self.reference in names:
                self._names, self._slices, self.shots = names, list(slices), shots
        return self.shots

    def save(self, saved: Saved) -> None:
        """Save what was added."""
        names = np.frombuffer("\n".join(self._names).encode(), np.uint8)
        slices = np.array(self._slices, np.int64).reshape(len(self), -1, 4)
        saved.save(shots=np.array(self.shots), slices=slices, names=names)


def _other_number(name: str) -> UsageError:
    return UsageError(
        "has another number of shots than the detection events", location=name, hint="use predictions of the same shots"
    )
