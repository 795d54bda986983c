"""Paired comparison of two decoders on recorded shots, by blocks of successive shots.

Recorded shots are not independent: error rates drift, and errors of neighbouring shots are correlated. The unit is
therefore a block. Let z be a block's (fixed - broken - g * reference errors) / sqrt(fixed + broken). If, given all
earlier blocks, z is as likely as -z, then exp(l z) / cosh(l z) has expectation 1 for every l, whatever the rates and
whatever happens within a block. The product over blocks is a test martingale, and so is a mixture over l: by Ville's
inequality it ever reaches 1/a with probability at most a (de la Pena, Ann. Probab. 27, 537, 1999; Ramdas, Ruf, Larsson
and Koolen, arXiv:2009.03167). The product falls as g grows, so that all gains g below a bound are rejected: the bounds
hold simultaneously for all numbers of blocks.

For g = 0 the symmetry is exact if the two decoders are exchangeable within each block. For g > 0 it holds
approximately, with an error that falls with the number of events per block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoqec.contracts.round import PairedCounts

STRENGTHS = np.geomspace(0.02, 4.0, 24)  # the mixture over l
MIN_GAIN, MAX_GAIN = -10.0, 1.0  # relative gains among which bounds are searched
BISECTIONS = 40
MAX_AUTOCORRELATION = 1.64  # standard errors of the correlation of successive blocks


@dataclass(frozen=True)
class BlockEffect:
    """Gain of a candidate over a reference on blocks of recorded shots.

    Attributes:
        blocks: Number of blocks.
        shots: Shots in all blocks.
        errors_reference: Shots that the reference predicts wrongly.
        errors_candidate: Shots that the candidate predicts wrongly.
        relative: 1 - errors_candidate / errors_reference; None if the reference made no error.
        low: Lower end of the interval of the relative gain.
        high: Upper end.
        e_value: Largest e-value on the way against "the gain is at most 0".
        autocorrelation: Correlation of the differences of successive blocks; None for fewer than three blocks.
    """

    blocks: int
    shots: int
    errors_reference: int
    errors_candidate: int
    relative: float | None
    low: float
    high: float
    e_value: float
    autocorrelation: float | None

    @property
    def blocks_too_short(self) -> bool:
        """Return whether successive blocks are correlated, so that the assumption of the test does not hold."""
        return self.autocorrelation is not None and bool(
            self.autocorrelation > MAX_AUTOCORRELATION / np.sqrt(self.blocks)
        )

    def is_evidence(self, alpha: float = 0.05) -> bool:
        """Return whether the candidate is shown to be better at level `alpha`."""
        return self.e_value >= 1 / alpha and not self.blocks_too_short


class BlockCounts:
    """Paired errors of a candidate and a reference, block by block.

    Attributes:
        block_shots: Successive shots per block.
        shots: Shots so far.
    """

    def __init__(self, block_shots: int) -> None:
        self.block_shots, self.shots = block_shots, 0
        self._rows: list[np.ndarray] = []  # int64 [4]: fixed, broken, errors of the reference and of the candidate

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, reference_wrong: np.ndarray, candidate_wrong: np.ndarray) -> None:
        """Add the next shots in the order of time, bool [n] each; the last block may stay incomplete."""
        if reference_wrong.shape != candidate_wrong.shape:
            raise ValueError(f"paired shots differ in number: {reference_wrong.shape} and {candidate_wrong.shape}")
        first = 0
        while first < len(reference_wrong):
            in_block = self.shots % self.block_shots
            if in_block == 0:
                self._rows.append(np.zeros(4, np.int64))
            part = slice(first, first + self.block_shots - in_block)
            reference, candidate = reference_wrong[part], candidate_wrong[part]
            columns = (reference & ~candidate, candidate & ~reference, reference, candidate)
            self._rows[-1] += [int(column.sum()) for column in columns]
            self.shots += len(reference)
            first += len(reference)

    def effect(self, confidence: float = 0.95) -> BlockEffect:
        """Return the gain with an interval that holds under drift of the error rates.

        Args:
            confidence: Confidence level of the two-sided interval, simultaneously for all numbers of blocks.
        """
        return block_effect(*self._columns(), self.shots, confidence)

    def log_e_value(self, gain: float = 0.0, *, harm: bool = False) -> float:
        """Return the log e-value against "the relative gain is at most `gain`"; see the function `log_e_value`."""
        return log_e_value(*self._columns(), gain, harm=harm)

    def totals(self) -> PairedCounts:
        """Return the counts of all blocks together."""
        fixed, broken, reference, candidate = np.array(self._rows, int).reshape(-1, 4).sum(0).tolist()
        return PairedCounts(
            shots=self.shots, errors_reference=reference, errors_candidate=candidate, fixed=fixed, broken=broken
        )

    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return float64 [blocks] each: shots that only the reference, only the candidate, and the reference loses."""
        fixed, broken, reference, _ = np.array(self._rows, float).reshape(-1, 4).T
        return fixed, broken, reference


def block_effect(
    fixed: np.ndarray, broken: np.ndarray, reference: np.ndarray, shots: int, confidence: float = 0.95
) -> BlockEffect:
    """Return the gain from the counts of each block, float64 [blocks]; see `log_e_value` and `BlockEffect`."""
    errors = int(reference.sum())
    candidate = int(errors - fixed.sum() + broken.sum())
    low, high = gain_interval(fixed, broken, reference, confidence)
    return BlockEffect(
        blocks=len(fixed),
        shots=shots,
        errors_reference=errors,
        errors_candidate=candidate,
        relative=1 - candidate / errors if errors else None,
        low=low,
        high=high,
        e_value=float(np.exp(min(log_e_value(fixed, broken, reference), 690.0))),
        autocorrelation=_autocorrelation(fixed - broken - (1 - candidate / max(errors, 1)) * reference),
    )


def _autocorrelation(differences: np.ndarray) -> float | None:
    if len(differences) < 3 or not differences.any():
        return None
    return float((differences[1:] * differences[:-1]).sum() / (differences**2).sum())


def log_e_value(
    fixed: np.ndarray, broken: np.ndarray, reference: np.ndarray, gain: float = 0.0, *, harm: bool = False
) -> float:
    """Return the largest log e-value over all numbers of blocks against "the relative gain is at most `gain`".

    Args:
        fixed: float64 [blocks], shots on which only the reference is wrong.
        broken: float64 [blocks], shots on which only the candidate is wrong.
        reference: float64 [blocks], shots on which the reference is wrong.
        gain: Relative gain of the null hypothesis.
        harm: Test "the relative gain is at least `gain`" in its place.
    """
    if len(fixed) == 0:
        return 0.0
    z = (fixed - broken - gain * reference) / np.sqrt(np.maximum(fixed + broken, 1))
    exponents = 2 * STRENGTHS[:, None] * (-z if harm else z)[None, :]
    # exp(x) / cosh(x) = 2 / (1 + exp(-2x))
    log_products = np.cumsum(np.log(2) - np.logaddexp(0, -exponents), axis=1)
    top = log_products.max(0)
    mixtures = top + np.log(np.exp(log_products - top).mean(0))
    return float(max(mixtures.max(), 0.0))


def gain_interval(
    fixed: np.ndarray, broken: np.ndarray, reference: np.ndarray, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the relative gains that are not rejected at (1 - confidence) / 2 on either side."""
    need = float(np.log(2 / (1 - confidence)))

    def bound(harm: bool) -> float:
        inner, outer = (MIN_GAIN, MAX_GAIN) if not harm else (MAX_GAIN, MIN_GAIN)
        if log_e_value(fixed, broken, reference, inner, harm=harm) < need:
            return inner
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            rejected = log_e_value(fixed, broken, reference, middle, harm=harm) >= need
            inner, outer = (middle, outer) if rejected else (inner, middle)
        return inner

    return bound(False), bound(True)
