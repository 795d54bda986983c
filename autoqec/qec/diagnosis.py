"""Diagnoses of recorded shots that do not fit their model: each with a name and the most likely cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment

from autoqec.qec.event_statistics import (
    MAX_PAIR_DETECTORS,
    EventCounts,
    ModelStatistics,
    count_events,
    model_statistics,
    similarity,
)
from autoqec.qec.problem import Problem

MIN_SHOTS = 200  # fewer shots say nothing
MIN_EXPECTED_EVENTS = 30.0  # fewer expected events say nothing about a detector that never fired
RANDOM = (0.42, 0.58)  # detection fractions of a detector that is not deterministic
UNLIKELY_RANDOM = 0.35  # a model with detection fractions above this may have them at 1/2
INVERTED = 0.6
SIMILAR, UNRELATED, BETTER = 0.97, 0.55, 0.05
MAX_NORM_ERROR = 0.2  # relative sampling error of the correlations' squared norm
SAME_CIRCUIT, MAX_SAME_ERROR = 0.9, 0.02  # similarity under other noise of the same kind, and such an error for it
GOOD_ORDER = 0.75  # similarity that an order must give: the detectors of another basis fit a shifted order by up to 0.7
MIN_GAIN = 0.2  # similarity of a detector's correlations that another place must add
GOOD_MATCH = 0.6
FEW_MOVED = 0.4  # similarity below which more than a few detectors are wrong
MANY = 0.25  # share of the detectors above which exchanges mean another circuit
RATE_RATIO = 3.0
FIRST_RATE_RATIO = 1.25  # for shots that are about to be decoded under the weights of the model
OTHER_NOISE = "other_noise_strength"
SURE = 4.0  # standard errors
LISTED = 8
CHECKED_EVENTS = 2**22  # values that are read to tell whether shots are of a model


@dataclass(frozen=True)
class Diagnosis:
    """One way in which recorded shots do not fit their model.

    Attributes:
        name: Stable identifier.
        message: What was found, with figures.
        cause: The most likely cause, or how to find it.
        error: Whether figures computed from the shots would be meaningless; False for a remark.
    """

    name: str
    message: str
    cause: str
    error: bool = True


@dataclass(frozen=True, eq=False)
class EventModel:
    """What a detector error model says of the first detectors of its shots.

    Attributes:
        statistics: Of these detectors.
        layers: Returns `layers` of all detectors.
        problem: The model as a problem, None if it is too long for one.
    """

    statistics: ModelStatistics
    layers: Callable[[], np.ndarray]
    problem: Problem | None = None

    @classmethod
    def of(cls, problem: Problem, n_detectors: int | None = None) -> EventModel:
        """Return the model of a problem's first detectors, by default of all of them."""
        statistics = model_statistics(problem.H[:n_detectors], problem.mechanism_probs)
        return cls(statistics, partial(layers, problem), problem)

    @classmethod
    def of_first(cls, problem: Problem) -> EventModel:
        """Return the model of as many detectors as `diagnose_first_shots` can check."""
        n = problem.n_detectors
        return cls.of(problem, n if n * MIN_SHOTS <= CHECKED_EVENTS else MAX_PAIR_DETECTORS)


def diagnose_first_shots(
    model_of_shots: Callable[[], EventModel], detection_events: np.ndarray
) -> list[Diagnosis] | None:
    """Tell from the first shots whether they are of a model: bit-packed shots of another circuit can have its size.

    Args:
        model_of_shots: Returns the model that they are decoded with; called if there are enough shots.
        detection_events: Bit-packed, uint8 [n, ceil(n_detectors / 8)].

    Returns:
        Diagnoses; empty if the shots fit, None if there are too few to tell.
    """
    if len(detection_events) < MIN_SHOTS:
        return None
    model = model_of_shots()
    n_detectors = len(model.statistics.fractions)
    counts = count_events([detection_events[: CHECKED_EVENTS // n_detectors]], n_detectors)
    found = _diagnose(model, counts)
    if any(each.error for each in found):
        return found
    expected = model.statistics.correlations
    direct = similarity(counts.correlations, expected, counts.shots)
    if direct < SAME_CIRCUIT and _is_precise(counts, expected, len(expected), MAX_SAME_ERROR):
        message = f"similarity of the events' correlations with the model's is {direct:.2f}, not {SAME_CIRCUIT} or more"
        cause = "they are of another circuit with as many bytes per shot, or the noise is of another kind"
        return [Diagnosis("other_circuit", message, cause, error=False)]
    return list(_rates(counts, model.statistics, FIRST_RATE_RATIO))


def describe_mismatch(found: Diagnosis) -> str:
    """Return a diagnosis of `diagnose_first_shots` in one line, which tells noise of another strength from the rest."""
    if found.name == OTHER_NOISE:
        remedy = "decode with a model of their noise (--dem, `dem` in Python): autoqec check-data DIR --dem-out FILE"
        return f"{found.message}; {remedy} estimates one"
    return f"the shots do not look like shots of the model: {found.message}; likely cause: {found.cause}"


def _is_precise(counts: EventCounts, expected: np.ndarray, n_usable: int, max_error: float) -> bool:
    """Return whether the shots are enough to compare correlations with expected ones of so many detectors."""
    strength = counts.shots * (expected**2).sum() / max(n_usable, 1)
    return counts.single.mean() >= MIN_EXPECTED_EVENTS and bool(strength * max_error >= np.sqrt(2))


def diagnose_events(problem: Problem, counts: EventCounts) -> list[Diagnosis]:
    """Compare detection fractions and pairwise correlations with the model.

    Args:
        problem: The env with the shots' model.
        counts: Counts of the recorded shots.

    Returns:
        Diagnoses; empty if the shots fit, None if there are too few to tell.
    """
    if counts.shots < MIN_SHOTS:
        return []
    return _diagnose(EventModel.of(problem), counts)


def _diagnose(event_model: EventModel, counts: EventCounts) -> list[Diagnosis]:
    model = event_model.statistics
    if not counts.single.any() and model.fractions.sum() * counts.shots > MIN_EXPECTED_EVENTS:
        return [
            Diagnosis("no_events", "no detector fired in any shot", "the file is empty of data, or of a simulation")
        ]
    found = list(_single_detectors(event_model, counts))
    k = len(counts.pairs)
    usable = ~_implausible(counts, model)[:k]
    found += _correlations(event_model, counts, usable)
    return found or list(_rates(counts, model, RATE_RATIO))


def _implausible(counts: EventCounts, model: ModelStatistics) -> np.ndarray:
    """Return bool [n_detectors], detectors whose fraction alone shows that they cannot fit."""
    fractions, expected = counts.fractions, model.fractions
    dead = (counts.single == 0) & (expected * counts.shots > MIN_EXPECTED_EVENTS)
    implausible: np.ndarray = dead | ((fractions > RANDOM[0]) & (expected < UNLIKELY_RANDOM))
    return implausible


def _single_detectors(model: EventModel, counts: EventCounts) -> Iterator[Diagnosis]:
    fractions, expected = counts.fractions, model.statistics.fractions
    dead = np.nonzero((counts.single == 0) & (expected * counts.shots > MIN_EXPECTED_EVENTS))[0]
    if len(dead):
        yield Diagnosis(
            "dead_detectors",
            f"{_listed(dead)} never fired in {counts.shots} shots; the model expects up to "
            f"{expected[dead].max() * counts.shots:.0f} events each",
            "a qubit was switched off, its measurements are constant, or its column is missing",
        )
    unlikely = expected < UNLIKELY_RANDOM
    stuck = np.nonzero(unlikely & (counts.single == counts.shots))[0]
    if len(stuck):
        yield Diagnosis("stuck_detectors", f"{_listed(stuck)} fired in every shot", "a measurement is constant 1")
    inverted = np.nonzero(unlikely & (fractions > INVERTED) & (counts.single < counts.shots))[0]
    if len(inverted):
        yield Diagnosis(
            "inverted_detectors",
            f"{_listed(inverted)} fired in {_range(fractions[inverted])} of the shots, the model expects "
            f"{_range(expected[inverted])}",
            "their measurements or the reference values are inverted: 0 and 1 are exchanged",
        )
    noisy = np.nonzero(unlikely & (fractions > RANDOM[0]) & (fractions <= INVERTED))[0]
    if len(noisy) and len(noisy) > 0.8 * unlikely.sum():
        yield Diagnosis(
            "random_events",
            f"{len(noisy)} of {len(fractions)} detectors fired in about half of the shots",
            "the file does not hold detection events: raw measurements, another circuit, or a wrong format",
        )
    elif len(noisy):
        yield _random_detectors(model.layers(), noisy, fractions)


def _random_detectors(time: np.ndarray, noisy: np.ndarray, fractions: np.ndarray) -> Diagnosis:
    message = f"{_listed(noisy)} fired in {_range(fractions[noisy])} of the shots, as if at random"
    if set(time[noisy]) == {0} and time.max() > 0:
        cause = "the initial state is not the one of the circuit: sweep bits are missing or of other shots"
        return Diagnosis("random_first_round", message, cause)
    if set(time[noisy]) == {time.max()} and time.max() > 0:
        cause = "the final data measurements are of another basis or of other shots, or are missing from the detectors"
        return Diagnosis("random_final_round", message, cause)
    return Diagnosis("random_detectors", message, "their measurements belong to another qubit or to other shots")


def _correlations(event_model: EventModel, counts: EventCounts, usable: np.ndarray) -> Iterator[Diagnosis]:
    """Compare the pattern of pairwise correlations, which does not depend on the overall rate."""
    model, mask = event_model.statistics, np.outer(usable, usable)
    observed, expected = np.where(mask, counts.correlations, 0), np.where(mask, model.correlations, 0)
    if not mask.any() or not _is_precise(counts, expected, usable.sum(), MAX_NORM_ERROR):
        return
    direct = similarity(observed, expected, counts.shots)
    if direct < SIMILAR:
        text, best = _best_order(event_model.problem, counts, model)
        if best > max(UNRELATED, direct + BETTER):
            if best < GOOD_ORDER:
                yield _wrong_model(f"{direct:.2f}; the likeliest order, {text}, gives {best:.2f}")
            else:
                yield Diagnosis(
                    "detectors_permuted",
                    f"the detectors are {text}: similarity of the correlations {best:.2f}, as they are {direct:.2f}",
                    "the tool that wrote the file uses another order of the detectors than the circuit",
                )
            return
    moved = moved_detectors(observed, expected, counts.shots) if direct > FEW_MOVED else {}
    if 0 < len(moved) < MANY * usable.sum():
        pairs = ", ".join(f"D{place} looks like D{detector}" for place, detector in list(moved.items())[:LISTED])
        yield Diagnosis(
            "detectors_swapped",
            f"{len(moved)} detectors have the correlations of other detectors: {pairs}",
            "columns or qubits are exchanged",
        )
    elif moved or direct < UNRELATED:
        yield _wrong_model(f"{direct:.2f}; no known order explains it")


def _wrong_model(similarity_text: str) -> Diagnosis:
    return Diagnosis(
        "wrong_model",
        f"similarity of the events' correlations with the model's is {similarity_text}",
        "the circuit or detector error model belongs to another experiment: basis, code, rounds or layout",
    )


def _best_order(problem: Problem | None, counts: EventCounts, model: ModelStatistics) -> tuple[str, float]:
    """Return the known order under which the correlations fit best, with its similarity."""
    if (
        problem is None or len(counts.pairs) < problem.n_detectors
    ):  # an order of all detectors cannot be applied to the first ones
        return "as in the circuit", -1.0
    values = {
        text: similarity(counts.correlations[np.ix_(order, order)], model.correlations, counts.shots)
        for text, order in known_orders(problem).items()
    }
    return max(values.items(), key=lambda item: item[1])


def _rates(counts: EventCounts, model: ModelStatistics, limit: float) -> Iterator[Diagnosis]:
    ratio = counts.fractions.mean() / max(model.fractions.mean(), 1e-12)
    error = SURE * _relative_error(counts)
    strength = "weaker" if ratio < 1 else "stronger"
    if not (1 - error) / limit < ratio < (1 + error) * limit:
        yield Diagnosis(
            OTHER_NOISE,
            f"the noise of the shots is {strength} than the model's: detection fractions are {ratio:.2g} times as high",
            "the model has another noise strength; `autoqec check-data DIR --dem-out FILE` estimates one",
            error=False,
        )


def _relative_error(counts: EventCounts) -> float:
    """Return the relative standard error of the mean detection fraction; events of a shot depend on each other."""
    events = counts.single[: len(counts.pairs)].sum() / counts.shots
    variance = counts.pairs.sum() / counts.shots - events**2
    return float(np.sqrt(max(variance, 0) / counts.shots) / max(events, 1e-12))


def _listed(detectors: np.ndarray) -> str:
    names = ", ".join(f"D{detector}" for detector in detectors[:LISTED])
    return names + (f" and {len(detectors) - LISTED} more detectors" if len(detectors) > LISTED else "")


def _range(values: np.ndarray) -> str:
    low, high = f"{values.min():.2f}", f"{values.max():.2f}"
    return low if low == high else f"{low} to {high}"


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
