"""The judge's decision rule: is the candidate better than the reference on the shots where they differ?

A shot is discordant when exactly one of the two is wrong. The null says P(fixed | discordant) <= 1/2. Evidence is
an e-process: non-negative, expectation at most 1 under the null at every stopping time, so by Ville's inequality
it ever reaches 1/a with probability at most a, however often one looks. Ours is a mixture of likelihood ratios
(Robbins 1970; Ramdas, Gruenwald, Vovk, Shafer, "Game-theoretic statistics and safe anytime-valid inference",
Statist. Sci. 38, 576, 2023; Waudby-Smith and Ramdas, JRSS B 86, 1, 2024).

A run judges a stream of candidates. e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024)
tests the t-th at level a_t = a * gamma_t * (1 + discoveries before t): the false discovery rate of the stream is
at most a, whatever the dependence between candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from scipy import special

from autoqec.contracts.verdict import PairedCounts, SequentialTest, StoppedBy
from autoqec.qec.stats import NO_PAIRS, add_pairs

# Mixing density Beta(20, 20), cut to (1/2, 1]: most of its mass on P(fixed | discordant) in 0.5..0.65, that is on
# relative gains of a few to thirty per cent, and enough beyond to lose only a few shots on larger ones.
MIXTURE = (20.0, 20.0)
FUTILITY_THRESHOLD = 1e-3  # predicted chance of still reaching the threshold below which testing stops
FUTILITY_MIN_DISCORDANT = 50  # discordant shots before futility is considered


def e_lond_weight(t: int) -> float:
    """e-LOND's weights 1 / (t (t + 1)), t = 1, 2, ...: they sum to 1 exactly."""
    if t < 1:
        raise ValueError(f"position {t} in the stream; the first is 1")
    return 1.0 / (t * (t + 1))


def e_lond_level(alpha: float, attempt_index: int, discoveries_before: int) -> float:
    """Level of the attempt at `attempt_index` (from 1), after `discoveries_before` VERIFIED ones."""
    if not 0 <= discoveries_before < attempt_index:
        raise ValueError(f"{discoveries_before} discoveries before attempt {attempt_index}")
    return alpha * e_lond_weight(attempt_index) * (1 + discoveries_before)


def log_e_value(wins: int, losses: int, mixture: tuple[float, float] = MIXTURE) -> float:
    """Log of the mixture of (q / (1/2))^wins ((1-q) / (1/2))^losses over q ~ Beta(mixture) cut to (1/2, 1].

    Each likelihood ratio of q > 1/2 against 1/2 is a supermartingale under every P(win) <= 1/2, so the mixture is.
    """
    a, b = mixture
    after = special.betaln(a + wins, b + losses) + _log_mass_above_half(a + wins, b + losses)
    return float((wins + losses) * math.log(2) + after - _log_prior(a, b))


@cache
def _log_prior(a: float, b: float) -> float:
    return float(special.betaln(a, b) + _log_mass_above_half(a, b))


def _log_mass_above_half(a: float, b: float) -> float:
    """log P(Beta(a, b) > 1/2)."""
    mass = float(special.betaincc(a, b, 0.5))
    if mass > 1e-290:
        return math.log(mass)
    # Underflow, far on the losing side: leading term of the continued fraction, 2^-(a+b) / (b B(a, b)),
    # a lower bound, so that the e-value stays one.
    return float(-(a + b) * math.log(2) - math.log(b) - special.betaln(a, b))


@dataclass
class Monitor:
    """Counts chunks of paired shots and says when to stop; looks at nothing but the counts.

    budget: shots at most. alpha: the level for harm, spent per candidate; alpha_t: the level of this attempt.
    Stopping early for futility or budget never rejects, so it cannot raise the error.
    """

    alpha: float
    attempt_index: int
    discoveries_before: int
    budget: int
    counts: PairedCounts = NO_PAIRS

    def __post_init__(self) -> None:
        self.alpha_t = e_lond_level(self.alpha, self.attempt_index, self.discoveries_before)

    def add(self, counts: PairedCounts) -> StoppedBy | None:
        """Take a chunk's counts; the reason to stop, or None to go on."""
        self.counts = add_pairs(self.counts, counts)
        fixed, broken = self.counts.fixed, self.counts.broken
        if log_e_value(fixed, broken) >= -math.log(self.alpha_t):
            return "evidence"
        if log_e_value(broken, fixed) >= -math.log(self.alpha):
            return "harm"
        if self.counts.shots >= self.budget:
            return "budget"
        return "futility" if self.success_probability() < FUTILITY_THRESHOLD else None

    def success_probability(self) -> float:
        """Predicted probability of reaching the threshold within the budget; 1 while too little was seen.

        P(fixed | discordant) has the posterior Beta(1 + fixed, 1 + broken); the discordant shots to come are as
        frequent as those seen, and a half more to be kind. Twice the tail at the end bounds the chance on the way.
        """
        fixed, broken, shots = self.counts.fixed, self.counts.broken, self.counts.shots
        discordant = fixed + broken
        if discordant < FUTILITY_MIN_DISCORDANT:
            return 1.0
        remaining = math.ceil(1.5 * discordant * (self.budget - shots) / shots)
        need = self._wins_needed(discordant + remaining) - fixed
        if need > remaining:
            return 0.0
        a, b = 1.0 + fixed, 1.0 + broken
        mean = remaining * a / (a + b)
        variance = remaining * a * b * (a + b + remaining) / ((a + b) ** 2 * (a + b + 1))
        return min(1.0, 2 * float(special.ndtr((mean + 0.5 - need) / math.sqrt(variance))))

    def _wins_needed(self, total: int) -> int:
        """Fewest wins among `total` discordant shots that reach the threshold; total + 1 where none does.

        The e-value grows with the wins, so a bracket round a first guess is halved: 2 (wins - total/2)^2 / total is
        the log of the likelihood ratio of the best q, and the mixture costs about two nats of it.
        """
        need = -math.log(self.alpha_t)
        low, high = total // 2, total + 1
        guess, step = total // 2 + math.isqrt(math.ceil(total * (need + 2) / 2)), 1 + math.isqrt(total) // 16
        while low < high:
            wins = guess if low <= guess < high else (low + high) // 2
            if log_e_value(wins, total - wins) >= need:
                high, guess = wins, wins - step
            else:
                low, guess = wins + 1, wins + step
            step *= 2
        return low

    def result(self, stopped_by: StoppedBy) -> SequentialTest:
        fixed, broken = self.counts.fixed, self.counts.broken
        return SequentialTest(
            counts=self.counts,
            e_value=_exp(log_e_value(fixed, broken)),
            e_value_harm=_exp(log_e_value(broken, fixed)),
            threshold=1 / self.alpha_t,
            alpha_t=self.alpha_t,
            attempt_index=self.attempt_index,
            discoveries_before=self.discoveries_before,
            stopped_by=stopped_by,
        )


def _exp(value: float) -> float:
    """exp, held at 1e300: JSON knows no infinity."""
    return math.exp(min(value, 690.0))
