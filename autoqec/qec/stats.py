"""Logical error rates, paired differences, and their confidence intervals."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from autoqec.contracts.round import PairedCounts, RoundMetrics
from autoqec.contracts.verdict import PairedEffect, Rate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def cpu_timed(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> tuple[Result, float]:
    """Return the result of a call and the CPU time of this process in seconds.

    Elapsed time would depend on the load of the machine.
    """
    start_s = time.process_time()
    result = function(*args, **kwargs)
    return result, time.process_time() - start_s


def latency_quantiles(elapsed_us: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median, the 99th and the 99.9th percentile of times, in their unit."""
    import numpy as np  # intervals are computed by commands that need no arrays

    p50, p99, p999 = (float(value) for value in np.quantile(elapsed_us, (0.5, 0.99, 0.999)))
    return p50, p99, p999


MAX_INTERPOLATIONS = 50  # of one root; a smooth function needs about 10
_LEAST_VARIANCE = 1e-300
_DISCORDANCE = 1.5  # discordant shots per error of the reference; measured pairs of decoders lie between 1 and 2


def clopper_pearson(errors: int, shots: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact confidence interval of a rate (Clopper and Pearson, 1934); (0, 1) without shots."""
    if not 0 <= errors <= shots:
        raise ValueError(f"{errors} errors out of {shots} shots")
    from scipy import special  # half a second to import, and intervals of paired effects do not need it

    tail = (1 - confidence) / 2
    low = float(special.betaincinv(errors, shots - errors + 1, tail)) if errors else 0.0
    high = float(special.betaincinv(errors + 1, shots - errors, 1 - tail)) if errors < shots else 1.0
    return low, high


def per_round(rate: float, rounds: int) -> float:
    """Convert a rate per shot to one per round.

    Flips of independent rounds compose as 1 - 2P = (1 - 2q)^rounds. A rate of 1/2 or more gives 1/2.
    """
    return 0.5 if rate >= 0.5 else (1 - (1 - 2 * rate) ** (1 / rounds)) / 2


def rate(errors: int, shots: int, *, rounds: int = 1, confidence: float = 0.95) -> Rate:
    """Return errors per shot with a Clopper-Pearson interval, and the estimate per round."""
    low, high = clopper_pearson(errors, shots, confidence)
    value = errors / shots if shots else 0.0
    return Rate(shots=shots, errors=errors, rate=value, low=low, high=high, per_round=per_round(value, rounds))


def error_mask(predictions: NDArray[np.bool_], observables: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [n], the shots in which any of the observables, [n, n_observables], is predicted wrongly."""
    wrong: NDArray[np.bool_] = (predictions != observables).any(axis=1)
    return wrong


def count_pairs(reference_wrong: NDArray[np.bool_], candidate_wrong: NDArray[np.bool_]) -> PairedCounts:
    """Count errors of two decoders on the same shots, bool [n] each."""
    if reference_wrong.shape != candidate_wrong.shape:
        raise ValueError(f"paired shots differ in number: {reference_wrong.shape} and {candidate_wrong.shape}")
    return PairedCounts(
        shots=int(reference_wrong.size),
        errors_reference=int(reference_wrong.sum()),
        errors_candidate=int(candidate_wrong.sum()),
        fixed=int((reference_wrong & ~candidate_wrong).sum()),
        broken=int((candidate_wrong & ~reference_wrong).sum()),
    )


def add_pairs(a: PairedCounts, b: PairedCounts) -> PairedCounts:
    """Return the counts of two disjoint sets of shots together."""
    return PairedCounts(**{name: getattr(a, name) + getattr(b, name) for name in PairedCounts.model_fields})


NO_PAIRS = PairedCounts(shots=0, errors_reference=0, errors_candidate=0, fixed=0, broken=0)


def paired_effect(
    counts: PairedCounts, *, reference: str = "mwpm", p: float | None = None, confidence: float = 0.95
) -> PairedEffect:
    """Estimate the difference and the relative reduction of two error rates on the same shots.

    The interval of `delta` is Tango's score interval (Statist. Med. 17, 891, 1998), that of `relative` the score
    interval for the ratio of paired proportions (Nam and Blackwelder, Statist. Med. 21, 689, 2002). Both keep their
    coverage with few events. `relative` is None if the reference made no error.

    Raises:
        ValueError: There are no shots.
    """
    shots, errors = counts.shots, counts.errors_reference
    if shots == 0:
        raise ValueError("the effect of zero shots is undefined")
    low, high = _delta_interval(counts.fixed, counts.broken, shots, confidence)
    relative = relative_low = relative_high = None
    if errors:
        relative = (counts.fixed - counts.broken) / errors
        ratio_low, ratio_high = _ratio_interval(counts, confidence)
        relative_low, relative_high = 1 - ratio_high, 1 - ratio_low
    return PairedEffect(
        reference=reference,
        p=p,
        counts=counts,
        delta=(counts.fixed - counts.broken) / shots,
        delta_low=low,
        delta_high=high,
        relative=relative,
        relative_low=relative_low,
        relative_high=relative_high,
    )


def validation_effect(metrics: RoundMetrics) -> PairedEffect | None:
    """Compare a round's decoder with the inner decoder alone on validation shots; None without paired counts."""
    counts = metrics.validation.counts if metrics.validation else None
    try:
        return paired_effect(counts) if counts else None
    except ValueError:  # counts that contradict each other
        return None


def detectable_effect(shots: int, ler: float) -> float:
    """Return the smallest relative reduction, at most 1, that a 95% interval from `shots` paired shots detects at 80%.

    A null result says nothing about smaller effects.

    Args:
        shots: Number of paired shots.
        ler: Logical error rate of the reference.
    """
    errors = shots * ler
    if errors <= 0:
        return 1.0
    z = _normal_quantile((1 + 0.95) / 2) + _normal_quantile(0.8)
    return min(1.0, z * math.sqrt(_DISCORDANCE / errors))


def _delta_interval(fixed: int, broken: int, shots: int, confidence: float) -> tuple[float, float]:
    z = _normal_quantile((1 + confidence) / 2)
    difference, discordant, slope, sqrt = fixed - broken, fixed + broken, 2 * shots - fixed + broken, math.sqrt
    estimate = difference / shots

    def score(delta: float) -> float:
        # q: likelihood estimate of P(broken) when P(fixed) - P(broken) = delta.
        b = slope * delta - discordant
        c = -broken * delta * (1 - delta)
        square = b * b - 8 * shots * c
        q = ((sqrt(square) if square > 0.0 else 0.0) - b) / (4 * shots)
        variance = shots * (2 * q + delta * (1 - delta))
        return (difference - shots * delta) / sqrt(variance if variance > _LEAST_VARIANCE else _LEAST_VARIANCE)

    return _solve_interval(score, estimate, z, -1.0, 1.0)


def _ratio_interval(counts: PairedCounts, confidence: float) -> tuple[float, float]:
    """Return the interval of LER(candidate) / LER(reference); the reference made at least one error."""
    z = _normal_quantile((1 + confidence) / 2)
    reference, candidate = counts.errors_reference, counts.errors_candidate
    fixed, broken, sqrt = counts.fixed, counts.broken, math.sqrt
    either, discordant = reference + broken, fixed + broken

    def score(ratio: float) -> float:
        # q: likelihood estimate of n P(broken) when P(candidate errs) = ratio * P(reference errs); the shots on
        # which either erred are then split into fixed = u + ratio q, broken = q and both = v - (1 + ratio) q.
        u, v = either * (1 - ratio), either * ratio
        a = ratio * (1 + ratio) * either
        b = (1 + ratio) * u * candidate - ratio * v * discordant
        c = -broken * u * v
        square = b * b - 4 * a * c
        root = sqrt(square) if square > 0.0 else 0.0
        q = -2 * c / (b + root) if b > 0 else (root - b) / (2 * a) if a else 0.0
        variance = ratio * (u + (1 + ratio) * q)
        return (candidate - ratio * reference) / sqrt(variance if variance > _LEAST_VARIANCE else _LEAST_VARIANCE)

    high = max(2.0, 2 * candidate / reference)
    while score(high) > -z:
        high *= 2
    return _solve_interval(score, candidate / reference, z, 0.0, high)


def _normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def _solve_interval(
    score: Callable[[float], float], estimate: float, z: float, floor: float, ceiling: float
) -> tuple[float, float]:
    """Return where a decreasing score crosses +z (low end) and -z (high end) within [floor, ceiling]."""
    edge = 1e-15
    low, high = floor, ceiling
    middle = score(estimate)
    if estimate > floor and (end := score(floor + edge)) > z:
        low = _root(score, z, floor + edge, estimate, end, middle)
    if estimate < ceiling and (end := score(ceiling - edge)) < -z:
        high = _root(score, -z, estimate, ceiling - edge, middle, end)
    return low, high


def _root(
    function: Callable[[float], float], level: float, a: float, b: float, value_a: float, value_b: float
) -> float:
    """Return where a function crosses `level` in [a, b] (Chandrupatla, Adv. Eng. Softw. 28, 145, 1997).

    Inverse quadratic interpolation through the last three points where they are monotonic enough, else bisection.
    After `MAX_INTERPOLATIONS` steps bisection alone, since near a flat root interpolation can make no progress.

    Args:
        function: The function.
        level: A value between `value_a` and `value_b`.
        a: One end of the interval.
        b: The other end.
        value_a: The function at `a`.
        value_b: The function at `b`.
    """
    value_a, value_b, step = value_a - level, value_b - level, 0.5
    if value_a == 0 or value_b == 0:
        return a if value_a == 0 else b
    for iteration in itertools.count():
        x = a + step * (b - a)
        value = function(x) - level
        if (value > 0) == (value_a > 0):
            c, value_c = a, value_a
        else:
            c, value_c, b, value_b = b, value_b, a, value_a
        a, value_a = x, value
        size, width = abs(a), abs(b - a)
        smallest_step = 1e-13 * (size if size > 1.0 else 1.0) / width if a != b else 1.0
        if value == 0 or smallest_step > 0.5:
            return a if abs(value_a) < abs(value_b) else b
        xi, phi = (a - b) / (c - b), (value_a - value_b) / (value_c - value_b)
        step = 0.5
        if iteration < MAX_INTERPOLATIONS and phi * phi < xi and (1 - phi) * (1 - phi) < 1 - xi:
            from_b = value_a / (value_b - value_a) * value_c / (value_b - value_c)
            from_c = value_a / (value_c - value_a) * value_b / (value_c - value_b)
            step = from_b + (c - a) / (b - a) * from_c
        if step < smallest_step:
            step = smallest_step
        elif step > 1 - smallest_step:
            step = 1 - smallest_step
    raise AssertionError("bisection ends")
