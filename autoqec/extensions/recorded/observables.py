"""Diagnoses of recorded observable flips, from the predictions of matching on the detection events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import linear_sum_assignment

from autoqec.extensions.recorded.diagnosis import Diagnosis
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, unpack

MAX_SHIFT = 64  # shots by which observables may be shifted against detection events
MIN_SIGNIFICANCE = 8.0  # standard errors of the correlation between prediction and flip that the model must reach
LOST, FOUND = 0.35, 0.6  # shares of the model's correlation
FRAME_ERRORS = 5.0  # standard errors by which predictions are wrong rather than right where a detector fired
MAX_FRAME = 8  # detectors in a wrong frame that are named
REFERENCE_SEED = 20_240_501
MIN_EXPECTED_FLIPS = 30.0

Decode = Callable[[np.ndarray], np.ndarray]


def diagnose_observables(problem: Problem, shots: Shots, decode: Decode) -> list[Diagnosis]:
    """Compare predicted with recorded flips, relative to the same comparison on shots sampled from the model.

    Args:
        problem: The env with the shots' model.
        shots: Recorded shots in their order.
        decode: The inner decoder, detection events to predictions.

    Returns:
        Diagnoses; empty if the flips fit or there are too few shots to tell.
    """
    n = len(shots)
    events, flips, _ = problem.dem.compile_sampler(seed=REFERENCE_SEED).sample(max(n, 1), bit_packed=True)
    expected = unpack(flips, problem.n_observables).astype(bool)
    reference = _correlation(decode(events), expected)
    rates = expected.mean(0)
    constant = (shots.observables.all(0) | ~shots.observables.any(0)) & (rates * n > MIN_EXPECTED_FLIPS)
    if constant.any():
        return [
            Diagnosis(
                "constant_observables",
                f"{_named(constant)} is the same in all {n} shots; the model expects {rates[constant][0]:.1%} flips",
                "the flips were not computed from the final measurements, or the file is a placeholder",
            )
        ]
    predicted = decode(shots.detection_events)
    measured = np.diagonal(_cross_correlation(predicted, shots.observables))
    known = reference * np.sqrt(n) > MIN_SIGNIFICANCE
    inverted = known & (measured < -LOST * reference) | known & _mostly_set(shots.observables, rates)
    if inverted.any():
        return [
            Diagnosis(
                "inverted_observables",
                f"{_named(inverted)}: recorded flips are opposite to the predicted ones (correlation "
                f"{measured[inverted][0]:.2f}, on shots of the model {reference[inverted][0]:.2f})",
                "the file holds final values and not flips relative to the initial state, or 0 and 1 are exchanged",
            )
        ]
    frame = _wrong_frame(problem, shots, predicted, known, reference)
    if frame is not None:
        return [frame]
    unrelated = known & (measured < LOST * reference)
    return [_unrelated(predicted, shots.observables, reference, measured, unrelated)] if unrelated.any() else []


def fits(predicted: np.ndarray, flips: np.ndarray) -> bool:
    """Return whether predictions and flips of equally many shots are clearly correlated."""
    if predicted.shape != flips.shape:
        return False
    return bool(_correlation(predicted, flips).mean() * np.sqrt(len(flips)) > MIN_SIGNIFICANCE)


def _mostly_set(flips: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return bool [n_observables], flips in most shots where the model expects few."""
    return np.asarray((flips.mean(0) > 0.6) & (rates < 0.4))


def _unrelated(
    predicted: np.ndarray, flips: np.ndarray, reference: np.ndarray, measured: np.ndarray, unrelated: np.ndarray
) -> Diagnosis:
    """Name the reason for which predictions and flips are unrelated."""
    goal = FOUND * reference[unrelated].mean()
    if len(reference) > 1:
        cross = _cross_correlation(predicted, flips)
        rows, columns = linear_sum_assignment(-cross)
        if (rows != columns).any() and cross[rows, columns].mean() > FOUND * reference.mean():
            pairs = ", ".join(f"L{row} is in column {column}" for row, column in zip(rows, columns, strict=True))
            return Diagnosis("observables_permuted", f"predicted {pairs}", "the observables are in another order")
    for shift in (*range(1, MAX_SHIFT + 1), *range(-MAX_SHIFT, 0)):
        inner = slice(MAX_SHIFT, len(flips) - MAX_SHIFT)
        if _correlation(predicted[inner], np.roll(flips, shift, 0)[inner])[unrelated].mean() > goal:
            return Diagnosis(
                "observables_shifted",
                f"recorded flips fit the detection events {abs(shift)} shots {'later' if shift > 0 else 'earlier'}",
                "one of the files lacks shots at its start, or has a header",
            )
    if _correlation(predicted, flips[::-1])[unrelated].mean() > goal:
        return Diagnosis("observables_reversed", "recorded flips are in the reverse order of the shots", "sort them")
    return Diagnosis(
        "unrelated_observables",
        f"{_named(unrelated)}: correlation of predicted and recorded flips {measured[unrelated][0]:.2f}, on shots of "
        f"the model {reference[unrelated][0]:.2f}",
        "the observables belong to other shots, to another logical operator, or to a circuit of the other basis",
    )


def _wrong_frame(
    problem: Problem, shots: Shots, predicted: np.ndarray, known: np.ndarray, reference: np.ndarray
) -> Diagnosis | None:
    """Find detectors whose parity must be added to an observable to make it predictable.

    If a detector's parity is part of the recorded flip, predictions are mostly wrong where it fired.
    """
    events = unpack(shots.detection_events, problem.n_detectors).astype(bool)
    fired = events.sum(0)
    for observable in np.nonzero(known)[0]:
        flips = shots.observables[:, observable]
        added: list[int] = []
        while len(added) < MAX_FRAME:
            wrong = predicted[:, observable] ^ flips
            excess = 2 * (events.T.astype(np.float32) @ wrong.astype(np.float32)) - fired
            best = int((excess - FRAME_ERRORS * np.sqrt(fired)).argmax())
            if excess[best] <= FRAME_ERRORS * np.sqrt(fired[best]):
                break
            flips = flips ^ events[:, best]
            added.append(best)
        predictable = _correlation(predicted[:, [observable]], flips[:, None])[0] > FOUND * reference[observable]
        if added and predictable:
            return Diagnosis(
                "wrong_frame",
                f"recorded flips of L{observable} include the parity of {', '.join(f'D{d}' for d in added)}",
                "the logical operator was read along another line than in the circuit, or without the frame updates",
            )
    return None


def _correlation(predicted: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """Return float64 [n_observables], correlations of predicted and recorded flips; 0 for constants."""
    return np.diagonal(_cross_correlation(predicted, flips))


def _cross_correlation(predicted: np.ndarray, flips: np.ndarray) -> np.ndarray:
    a, b = (values - values.mean(0) for values in (predicted.astype(float), flips.astype(float)))
    norm = np.outer(np.sqrt((a**2).sum(0)), np.sqrt((b**2).sum(0)))
    result: np.ndarray = a.T @ b / np.where(norm > 0, norm, np.inf)
    return result


def _named(mask: np.ndarray) -> str:
    return ", ".join(f"L{index}" for index in np.nonzero(mask)[0])
