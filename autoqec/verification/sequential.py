"""The sequential test: is the candidate's relative gain over the reference above the env's minimum?

On one shot let x = (1 - g) [reference wrong] - [candidate wrong], with g the minimum relative gain. The null
hypothesis "the gain is at most g", P(candidate wrong) >= (1 - g) P(reference wrong), is E[x] <= 0. For each l in (0, 1)
the product of 1 + l x over shots is non-negative and has expectation at most 1 under the null at every stopping time,
and so has a mixture over l: an e-process. By Ville's inequality it ever reaches 1/a with probability at most a, however
often it is inspected. For g = 0 only discordant shots count, and l = 2q - 1 gives the mixture of likelihood ratios of
P(fixed | discordant) = q against 1/2. (Robbins 1970; Ramdas, Gruenwald, Vovk, Shafer, "Game-theoretic statistics and
safe anytime-valid inference", Statist. Sci. 38, 576, 2023; Waudby-Smith and Ramdas, JRSS B 86, 1, 2024.)

A run tests a stream of candidates. e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024) tests
the t-th at level a_t = a * gamma_t * (1 + discoveries before t): the false discovery rate of the stream is at most a,
for any dependence between candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import SequentialTest, StoppedBy
from autoqec.qec.stats import NO_PAIRS, add_pairs

# Mixing density Beta(20, 20) of q, truncated to (1/2, 1]: most of its mass lies on P(fixed | discordant) in 0.5 to
# 0.65, that is on relative gains of a few to thirty per cent; larger gains cost only a few shots more.
MIXTURE = (20.0, 20.0)
MIXTURE_NODES = 256  # points of the mixture over l for g > 0, denser towards 0
FUTILITY_THRESHOLD = 1e-3  # testing stops if the predicted chance of still reaching the threshold is below this
FUTILITY_MIN_DISCORDANT = 50  # discordant shots before futility is considered


def e_lond_weight(t: int) -> float:
    """Return the e-LOND weight 1 / (t (t + 1)) of attempt t = 1, 2, ...; the weights sum to 1."""
    if t < 1:
        raise ValueError(f"position {t} in the stream; the first is 1")
    return 1.0 / (t * (t + 1))


def e_lond_level(alpha: float, attempt_index: int, discoveries_before: int) -> float:
    """Return the level of the attempt at `attempt_index` (from 1) after `discoveries_before` VERIFIED ones."""
    if not 0 <= discoveries_before < attempt_index:
        raise ValueError(f"{discoveries_before} discoveries before attempt {attempt_index}")
    return alpha * e_lond_weight(attempt_index) * (1 + discoveries_before)


def log_e_value(wins: int, losses: int, mixture: tuple[float, float] = MIXTURE) -> float:
    """Return the log e-value against "P(win) is at most 1/2".

    It is the mixture of (q / (1/2))^wins ((1-q) / (1/2))^losses over q ~ Beta(mixture) truncated to (1/2, 1].
    """
    a, b = mixture
    after = special.betaln(a + wins, b + losses) + _log_mass_above_half(a + wins, b + losses)
    return float((wins + losses) * math.log(2) + after - _log_prior(a, b))


def log_e_value_of_gain(fixed: int, broken: int, both: int, min_relative_gain: float) -> float:
    """Return the log e-value against "the relative gain is at most `min_relative_gain`".

    Args:
        fixed: Shots on which only the reference is wrong.
        broken: Shots on which only the candidate is wrong.
        both: Shots on which both are wrong.
        min_relative_gain: Relative gain under the null hypothesis, in [0, 1).
    """
    if min_relative_gain == 0.0:
        return log_e_value(fixed, broken)
    log_weights, log_fixed, log_broken, log_both = _gain_mixture(min_relative_gain)
    exponents = log_weights + fixed * log_fixed + broken * log_broken + both * log_both
    top = exponents.max()
    return float(top + math.log(np.exp(exponents - top).sum()))


@cache
def _gain_mixture(gain: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log weights of the nodes l, and log(1 + l x) for a fixed shot, a broken one, and one that both decoders lose."""
    node = ((np.arange(MIXTURE_NODES) + 0.5) / MIXTURE_NODES) ** 2
    a, b = MIXTURE
    log_density = (a - 1) * np.log1p(node) + (b - 1) * np.log1p(-node) + 0.5 * np.log(node)  # dl = 2 sqrt(l) du
    log_weights = log_density - special.logsumexp(log_density)
    return log_weights, np.log1p(node * (1 - gain)), np.log1p(-node), np.log1p(-node * gain)


@cache
def _log_prior(a: float, b: float) -> float:
    return float(special.betaln(a, b) + _log_mass_above_half(a, b))


def _log_mass_above_half(a: float, b: float) -> float:
    """log P(Beta(a, b) > 1/2)."""
    mass = float(special.betaincc(a, b, 0.5))
    if mass > 1e-290:
        return math.log(mass)
    # Underflow, far on the losing side: the leading term of the continued fraction, 2^-(a+b) / (b B(a, b)), is a lower
    # bound, so the result is still an e-value.
    return float(-(a + b) * math.log(2) - math.log(b) - special.betaln(a, b))


@dataclass
class Monitor:
    """Adds chunks of paired counts and decides when to stop, from the counts alone.

    Stopping early for futility or budget never rejects, so it cannot raise the error.

    Attributes:
        alpha: Level of the test for harm, spent per candidate; `alpha_t` is the level of this attempt.
        budget: Most shots.
        min_relative_gain: Relative gain under the null hypothesis.
    """

    alpha: float
    attempt_index: int
    discoveries_before: int
    budget: int
    min_relative_gain: float = 0.0
    counts: PairedCounts = NO_PAIRS

    def __post_init__(self) -> None:
        self.alpha_t = e_lond_level(self.alpha, self.attempt_index, self.discoveries_before)

    def add(self, counts: PairedCounts) -> StoppedBy | None:
        """Add a chunk's counts; return the reason to stop, or None to continue."""
        self.counts = add_pairs(self.counts, counts)
        if self.log_e_value >= -math.log(self.alpha_t):
            return "evidence"
        if self.log_e_value_harm >= -math.log(self.alpha):
            return "harm"
        if self.counts.shots >= self.budget:
            return "budget"
        return "futility" if self.success_probability() < FUTILITY_THRESHOLD else None

    @property
    def log_e_value(self) -> float:
        """Log e-value for a gain above the minimum."""
        counts = self.counts
        both = counts.errors_reference - counts.fixed
        return log_e_value_of_gain(counts.fixed, counts.broken, both, self.min_relative_gain)

    @property
    def log_e_value_harm(self) -> float:
        """Log e-value for more errors than the reference."""
        return log_e_value(self.counts.broken, self.counts.fixed)

    @property
    def e_value(self) -> float:
        """E-value for a gain above the minimum, at most 1e299: JSON has no infinity."""
        return _exp(self.log_e_value)

    def success_probability(self) -> float:
        """Predict the probability of reaching the threshold within the budget; 1 until enough shots were seen.

        P(fixed | discordant) has the posterior Beta(1 + fixed, 1 + broken). Discordant shots to come are taken as 1.5
        times as frequent as those seen, to err on the side of continuing; shots that both decoders lose as equally
        frequent. Twice the tail probability at the end bounds the chance of reaching the threshold on the way.
        """
        fixed, broken, shots = self.counts.fixed, self.counts.broken, self.counts.shots
        discordant = fixed + broken
        if discordant < FUTILITY_MIN_DISCORDANT:
            return 1.0
        remaining = math.ceil(1.5 * discordant * (self.budget - shots) / shots)
        both = round((self.counts.errors_reference - fixed) * self.budget / shots)
        need = self._wins_needed(discordant + remaining, both) - fixed
        if need > remaining:
            return 0.0
        a, b = 1.0 + fixed, 1.0 + broken
        mean = remaining * a / (a + b)
        variance = remaining * a * b * (a + b + remaining) / ((a + b) ** 2 * (a + b + 1))
        return min(1.0, 2 * float(special.ndtr((mean + 0.5 - need) / math.sqrt(variance))))

    def _wins_needed(self, total: int, both: int) -> int:
        """Return the fewest wins among `total` discordant shots that reach the threshold; total + 1 if none do.

        The e-value grows with the wins, so a bracket around a first guess is halved: 2 (wins - total/2)^2 / total is
        the log of the likelihood ratio of the best q, and the mixture costs about two nats of it.
        """
        need = -math.log(self.alpha_t)
        low, high = total // 2, total + 1
        guess, step = total // 2 + math.isqrt(math.ceil(total * (need + 2) / 2)), 1 + math.isqrt(total) // 16
        while low < high:
            wins = guess if low <= guess < high else (low + high) // 2
            if log_e_value_of_gain(wins, total - wins, both, self.min_relative_gain) >= need:
                high, guess = wins, wins - step
            else:
                low, guess = wins + 1, wins + step
            step *= 2
        return low

    def result(self, stopped_by: StoppedBy) -> SequentialTest:
        """Return the test as it stands, for the report."""
        return SequentialTest(
            counts=self.counts,
            e_value=self.e_value,
            e_value_harm=_exp(self.log_e_value_harm),
            threshold=1 / self.alpha_t,
            alpha_t=self.alpha_t,
            attempt_index=self.attempt_index,
            discoveries_before=self.discoveries_before,
            stopped_by=stopped_by,
            min_relative_gain=self.min_relative_gain,
        )


def _exp(value: float) -> float:
    return math.exp(min(value, 690.0))
