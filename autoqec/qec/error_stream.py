"""Errors of a detector error model one block after the other, without unrolling its loops in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import stim

SEPARATOR, OUTSIDE = -1, np.iinfo(np.int64).min  # in lists of targets; observable k is -2 - k
MAX_BLOCK = 4096  # errors
MIN_PAIRS = 2**20  # connected detectors that are merged into components at once


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of a model, in its order.

    Attributes:
        probabilities: float64 [n].
        targets: int64, the targets of all errors in a row: a detector, SEPARATOR, OUTSIDE, or -2 - observable.
        lengths: int64 [n], the number of targets of each error, at least 1.
    """

    probabilities: np.ndarray
    targets: np.ndarray
    lengths: np.ndarray

    @classmethod
    def none(cls) -> Errors:
        """Return no errors."""
        return cls(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def shifted(self, offset: int) -> Errors:
        """Return the errors with `offset` added to every detector."""
        targets = np.where(self.targets >= 0, self.targets + offset, self.targets)
        return Errors(self.probabilities, targets, self.lengths)

    def selected(self, mask: np.ndarray) -> Errors:
        """Return the errors of a mask, bool [n]."""
        return Errors(self.probabilities[mask], self.targets[np.repeat(mask, self.lengths)], self.lengths[mask])

    def reach(self, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last round of the detectors of each error, int [n].

        Args:
            rounds: int [n_detectors], the round of each detector. An error without detectors begins after all of them
                and ends before.
        """
        starts = np.cumsum(self.lengths) - self.lengths
        found = np.where(self.targets >= 0, rounds[self.targets], -1)
        latest = np.maximum.reduceat(found, starts)
        found[self.targets < 0] = rounds.max() + 1
        return np.minimum.reduceat(found, starts), latest


class SectorFinder:
    """Finds the detectors of the connected components in which an error flips an observable, as `matching_graph` does.

    Errors are added block by block; what is kept of them is a label per detector.

    Args:
        n_detectors: Number of detectors of the model.
    """

    def __init__(self, n_detectors: int) -> None:
        self._labels, self._logical = np.arange(n_detectors), np.zeros(n_detectors, bool)
        self._pairs: list[np.ndarray] = []
        self._n_pairs = 0

    def add(self, errors: Errors) -> None:
        """Add a block of errors."""
        part = np.repeat(np.arange(len(errors)), errors.lengths) + np.cumsum(errors.targets == SEPARATOR)
        is_detector = errors.targets >= 0
        detectors, of_part = errors.targets[is_detector], part[is_detector]
        logical_parts = part[~is_detector & (errors.targets != SEPARATOR)]
        self._logical[detectors[np.isin(of_part, logical_parts)]] = True
        joined = of_part[1:] == of_part[:-1]
        self._pairs.append(np.stack([detectors[:-1][joined], detectors[1:][joined]]))
        self._n_pairs += int(joined.sum())
        if self._n_pairs > max(MIN_PAIRS, len(self._labels) // 4):
            self._merge()

    def found(self) -> np.ndarray:
        """Return bool [n_detectors]."""
        self._merge()
        return np.isin(self._labels, self._labels[self._logical])

    def _merge(self) -> None:
        """Merge the components that pairs connect."""
        ends = self._labels[np.concatenate([np.empty((2, 0), np.int64), *self._pairs], axis=1)]
        adjacency = sp.coo_matrix((np.ones(ends.shape[1], bool), ends), (len(self._labels), len(self._labels)))
        self._labels = sp.csgraph.connected_components(adjacency, directed=False)[1][self._labels]
        self._pairs, self._n_pairs = [], 0


def concatenate(blocks: Sequence[Errors]) -> Errors:
    """Return the errors of one block or more."""
    parts = zip(*((each.probabilities, each.targets, each.lengths) for each in blocks), strict=True)
    return Errors(*(np.concatenate(part) for part in parts))


@dataclass(frozen=True, eq=False)
class _Loop:
    count: int
    body: list[tuple[int, Errors | _Loop]]
    shift: int


class ErrorStream:
    """The errors of a detector error model, which can be read again and again.

    In memory are the errors of every loop's body once, and one block of them while it is read.
    """

    def __init__(self, dem: stim.DetectorErrorModel) -> None:
        self._body, _ = _read(dem)

    def __iter__(self) -> Iterator[Errors]:
        """Yield the errors in the model's order, in blocks of 1 to MAX_BLOCK."""
        return _unroll(self._body, 0)


def _read(dem: stim.DetectorErrorModel) -> tuple[list[tuple[int, Errors | _Loop]], int]:
    """Return the blocks and loops of a model, each with the shift of detectors before it, and the shift of them all."""
    body: list[tuple[int, Errors | _Loop]] = []
    open_block, shift = _Block(), 0
    for instruction in dem:
        if isinstance(instruction, stim.DemRepeatBlock):
            open_block = open_block.close(body, shift)
            inner, step = _read(instruction.body_copy())
            if inner:
                body.append((shift, _Loop(instruction.repeat_count, inner, step)))
            shift += instruction.repeat_count * step
        elif instruction.type == "shift_detectors":
            open_block = open_block.close(body, shift)
            shift += instruction.targets_copy()[0]
        elif instruction.type == "error":
            open_block.append(instruction)
            if len(open_block) == MAX_BLOCK:
                open_block = open_block.close(body, shift)
    open_block.close(body, shift)
    return body, shift


class _Block:
    """Errors that are read one by one."""

    def __init__(self) -> None:
        self._probabilities, self._targets, self._lengths = array("d"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._lengths)

    def append(self, instruction: stim.DemInstruction) -> None:
        """Add an error, unless it flips nothing."""
        found = [
            each.val if each.is_relative_detector_id() else SEPARATOR if each.is_separator() else -2 - each.val
            for each in instruction.targets_copy()
        ]
        if found:
            self._probabilities.append(instruction.args_copy()[0])
            self._targets.extend(found)
            self._lengths.append(len(found))

    def close(self, body: list[tuple[int, Errors | _Loop]], shift: int) -> _Block:
        """Append what was read to `body`; return the next block."""
        if len(self):
            arrays = (np.array(each) for each in (self._probabilities, self._targets, self._lengths))
            body.append((shift, Errors(*arrays)))
        return _Block()


def _unroll(body: list[tuple[int, Errors | _Loop]], offset: int) -> Iterator[Errors]:
    for shift, part in body:
        if isinstance(part, Errors):
            yield part.shifted(offset + shift)
        else:
            for repetition in range(part.count):
                yield from _unroll(part.body, offset + shift + repetition * part.shift)
