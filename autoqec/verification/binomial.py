"""Tail probabilities of binomial distributions, without scipy.stats, which takes long to import."""

from __future__ import annotations

import math

from scipy import special

TIE = 1 + 1e-7  # probabilities this close count as equal, as in scipy.stats.binomtest


def probability_of_more(count: int, trials: int, p: float) -> float:
    """Return the probability of more than `count` successes in `trials` of probability `p` each."""
    if not 0 <= count < trials:
        return float(count < 0)
    return float(special.betainc(count + 1, trials - count, p))


def upper_quantile(chance: float, trials: int, p: float) -> int:
    """Return the least count that is exceeded with a probability of at most `chance`."""
    low, high = 0, trials
    while low < high:
        middle = (low + high) // 2
        if probability_of_more(middle, trials, p) <= chance:
            high = middle
        else:
            low = middle + 1
    return low


def two_sided_p_value(count: int, trials: int, p: float) -> float:
    """Return the p-value of the exact two-sided test: the probability of counts not more probable than `count`.

    Args:
        count: Observed successes.
        trials: Number of trials.
        p: Their probability under the null hypothesis, in (0, 1).
    """
    mode = p * trials
    if count == mode:
        return 1.0
    limit = _log_probability(count, trials, p) + math.log(TIE)
    if count < mode:
        low, high = math.ceil(mode), trials + 1  # the first count above the mode that is not more probable
        while low < high:
            middle = (low + high) // 2
            if _log_probability(middle, trials, p) <= limit:
                high = middle
            else:
                low = middle + 1
        lower, upper = count, low
    else:
        low, high = -1, math.floor(mode)  # the last one below
        while low < high:
            middle = (low + high + 1) // 2
            if _log_probability(middle, trials, p) <= limit:
                low = middle
            else:
                high = middle - 1
        lower, upper = low, count
    return min(1.0, _probability_of_at_most(lower, trials, p) + probability_of_more(upper - 1, trials, p))


def _probability_of_at_most(count: int, trials: int, p: float) -> float:
    if not 0 <= count < trials:
        return float(count >= 0)
    return float(special.betaincc(count + 1, trials - count, p))


def _log_probability(count: int, trials: int, p: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return ways + count * math.log(p) + (trials - count) * math.log1p(-p)
