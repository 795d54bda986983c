"""Orders in which the detectors of recorded shots may have been written by mistake."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from autoqec.qec.problem import Problem

MIN_GAIN = 0.2  # similarity of a detector's correlations that another place must add
GOOD_MATCH = 0.6


def known_orders(problem: Problem) -> dict[str, np.ndarray]:
    """Return likely wrong orders: description -> int [n_detectors], the place in the file of each detector."""
    n = problem.n_detectors
    index = np.arange(n)
    time = layers(problem)
    coordinates = problem.coordinates
    space = coordinates[:, : max(coordinates.shape[1] - 1, 0)] if coordinates.shape[1] > 1 else np.zeros((n, 0))
    sector = np.zeros(n, int)
    sector[problem.graph.out_of_sector] = 1
    files = {
        "in reverse order": index[::-1],
        "sorted by position first and by time second": np.lexsort((time, *space.T)),
        "sorted by time in reverse": np.lexsort((index, -time)),
        "sorted by basis first (the observable's basis last)": np.lexsort((index, -sector)),
        "sorted by basis first (the observable's basis first)": np.lexsort((index, sector)),
        "with the bases swapped within each round": _bases_swapped(time, sector),
        "shifted by one detector": np.roll(index, 1),
        "shifted by one detector backwards": np.roll(index, -1),
    }
    if n % 8 == 0:
        files["with the bits of each byte in reverse order (big-endian)"] = index ^ 7
    width = int(np.bincount(time).max())
    if width < n:
        files["shifted by one round"] = np.roll(index, width)
        files["shifted by one round backwards"] = np.roll(index, -width)
    return {text: np.argsort(order) for text, order in files.items() if not np.array_equal(order, index)}


def layers(problem: Problem) -> np.ndarray:
    """Return int [n_detectors], the index of each detector's time coordinate, the last one as in stim's circuits."""
    coordinates = problem.coordinates
    if coordinates.shape[1] == 0:
        return np.zeros(problem.n_detectors, int)
    return np.unique(coordinates[:, min(2, coordinates.shape[1] - 1)], return_inverse=True)[1]


def _bases_swapped(time: np.ndarray, sector: np.ndarray) -> np.ndarray:
    """Exchange the k-th detectors of the two sectors in each layer that holds equally many of both."""
    order = np.arange(len(time))
    for layer in np.unique(time):
        first, second = (np.nonzero((time == layer) & (sector == side))[0] for side in (0, 1))
        if len(first) == len(second):
            order[first], order[second] = second, first
    return order


def moved_detectors(observed: np.ndarray, expected: np.ndarray, shots: int) -> dict[int, int]:
    """Find single detectors whose correlations are those of another detector.

    Args:
        observed: float64 [n_detectors, n_detectors], correlations of `shots` shots.
        expected: Correlations of the model.
        shots: Number of shots.

    Returns:
        Place in the file -> the detector whose correlations were found there.
    """
    noise = observed.shape[1] / max(shots, 1)
    norm = np.sqrt(np.maximum((observed**2).sum(1) - noise, noise + 1e-9))
    cosine = observed @ expected.T / np.outer(norm, np.sqrt(np.maximum((expected**2).sum(1), 1e-9)))
    suspects = np.nonzero(cosine.max(1) - np.diagonal(cosine) > MIN_GAIN)[0]
    if len(suspects) < 2:
        return {}
    rows, columns = linear_sum_assignment(-cosine[np.ix_(suspects, suspects)])
    found = {int(suspects[row]): int(suspects[column]) for row, column in zip(rows, columns, strict=True)}
    return {
        place: detector
        for place, detector in found.items()
        if place != detector
        and cosine[place, detector] > GOOD_MATCH
        and cosine[place, detector] - cosine[place, place] > MIN_GAIN
    }
