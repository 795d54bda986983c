"""Gated decoding: a predecoder decodes only the shots on which plain matching is not confident.

The complementary gap of plain matching (arXiv:2312.04522) is the confidence. Shots whose gap reaches the gate keep the
plain prediction; the others are ambiguous, and go through the predecoder and the inner decoder under its log-odds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoqec.contracts.dsl import MAX_GATE, OutputMode
from autoqec.errors import UsageError
from autoqec.qec.backends import SoftBackend, make_soft_backend
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import band_seed, sample

CAP_MARGIN = 0.5  # nats that matching searches beyond the gate, so that rounding cannot move a gap across it
CALIBRATION_SHOTS = 50_000
MIN_GATE = 1e-3  # nats; a share of shots so small that calibration finds a gap of 0
REMOVE_HINT = "remove `gate` from the config"


class Gate:
    """Selects the shots that a predecoder decodes, and counts them.

    Args:
        problem: The decoding problem.
        threshold: Complementary gap in nats from which a shot keeps the prediction of plain matching.
        hint: What errors recommend.

    Raises:
        UsageError: The problem has no complementary gap: its inner decoder is not matching, it has several observables,
            or no cut separates its logical classes.
    """

    def __init__(self, problem: Problem, threshold: float, *, hint: str = REMOVE_HINT) -> None:
        if not isinstance(problem.graph, MatchingGraph):
            raise UsageError(
                f"a gate needs the complementary gap of matching, which backend `{problem.env.backend}` does not have",
                location=f"env `{problem.env.name}`, config key `gate`",
                hint=hint,
            )
        self.threshold = threshold
        self.shots = self.ambiguous_shots = 0
        self._matcher = LogicalClassMatcher(problem, hint=hint)

    def split(self, detection_events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decode by plain matching, and find the shots on which it is not confident.

        Args:
            detection_events: uint8 [n, ceil(n_detectors / 8)], bit-packed.

        Returns:
            Predictions, bool [n, 1], which are final for shots that are not ambiguous, and bool [n], the ambiguous
            shots.
        """
        gap = self.gap(detection_events)
        ambiguous = np.abs(gap) < self.threshold
        self.shots += len(gap)
        self.ambiguous_shots += int(np.count_nonzero(ambiguous))
        return (gap < 0)[:, None], ambiguous

    def split_one(self, detection_events: np.ndarray) -> tuple[bool, bool]:
        """Do the same for one shot, uint8 [1, ceil(n_detectors / 8)]: its prediction, and whether it is ambiguous."""
        gap = float(self.gap(detection_events)[0])
        ambiguous = abs(gap) < float(np.float32(self.threshold))  # as numpy compares arrays of float32
        self.shots += 1
        self.ambiguous_shots += ambiguous
        return gap < 0, ambiguous

    def gap(self, detection_events: np.ndarray) -> np.ndarray:
        """Return complementary gaps in nats, float32 [n], cut off beyond the threshold."""
        return self._matcher.complementary_gap(detection_events, cap=self.threshold + CAP_MARGIN)

    @property
    def ambiguous_share(self) -> float:
        """Return the share of ambiguous shots among all shots so far, 0 without shots."""
        return self.ambiguous_shots / max(self.shots, 1)


def calibrate_gate(problem: Problem, share: float) -> float:
    """Return the gate in nats that about `share` of the shots do not reach, from shots of the training band.

    Args:
        problem: The decoding problem.
        share: Target share of ambiguous shots.

    Raises:
        UsageError: The problem has no complementary gap, see `Gate`.
    """
    gate = Gate(problem, MAX_GATE)
    seed = band_seed(problem.env.seed_policy.train, "gate")
    gaps = np.abs(gate.gap(sample(problem, CALIBRATION_SHOTS, seed).detection_events))
    nats = float(np.quantile(gaps, share, method="higher"))
    return min(max(nats, MIN_GATE), MAX_GATE)


def has_gap(problem: Problem) -> bool:
    """Return whether a config for this problem can have a gate, see `Gate`."""
    try:
        Gate(problem, 1.0)
    except UsageError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Selection:
    """The shots of a batch that a predecoder decodes, and the predictions of the others.

    Attributes:
        detection_events: uint8 [k, ceil(n_detectors / 8)], bit-packed, of the selected shots.
        mask: bool [n], the selected shots.
        predictions: bool [n, n_observables], final for shots that are not selected.
    """

    detection_events: np.ndarray
    mask: np.ndarray
    predictions: np.ndarray

    def __len__(self) -> int:
        return len(self.detection_events)


class GatedDecoder:
    """The env's inner decoder with per-shot log-odds, behind a gate if the config has one.

    Attributes:
        gate: None if every shot is decoded with log-odds.
    """

    def __init__(self, inner: SoftBackend, n_observables: int, gate: Gate | None) -> None:
        self.inner, self.gate = inner, gate
        self._n_observables = n_observables

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """See `Backend.decode`; the gate does not change predictions under the priors."""
        return self.inner.decode(detection_events)

    def select(self, detection_events: np.ndarray) -> Selection:
        """Find the shots for which log-odds are needed: the ambiguous ones, or all without a gate."""
        if self.gate is None:
            n = len(detection_events)
            return Selection(detection_events, np.ones(n, bool), np.zeros((n, self._n_observables), bool))
        predictions, ambiguous = self.gate.split(detection_events)
        return Selection(detection_events[ambiguous], ambiguous, predictions)

    def complete(self, selection: Selection, log_odds: np.ndarray) -> np.ndarray:
        """Decode the selected shots under their log-odds, float32 [k, n_edges]; return bool [n, n_observables]."""
        predictions = selection.predictions.copy()
        if len(selection):
            predictions[selection.mask] = self.inner.decode_soft(selection.detection_events, log_odds)
        return predictions

    def decode_with(self, detection_events: np.ndarray, network: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Decode with a network that maps selected, bit-packed detection events to log-odds."""
        if len(detection_events) == 1 and self.gate is not None:
            flipped, ambiguous = self.gate.split_one(detection_events)
            if not ambiguous:
                return np.array([[flipped]])
            return self.inner.decode_soft(detection_events, network(detection_events))
        selection = self.select(detection_events)
        return (
            self.complete(selection, network(selection.detection_events)) if len(selection) else selection.predictions
        )


def make_decoder(
    problem: Problem, output_mode: OutputMode, gate: float | None, *, hint: str = REMOVE_HINT
) -> GatedDecoder:
    """Build the env's inner decoder for a predecoder, behind a gate if its config has one.

    Args:
        problem: The decoding problem.
        output_mode: The predecoder's output mode.
        gate: The gate in nats; None for no gate.
        hint: What an error about the gate recommends.

    Raises:
        UsageError: The problem has no complementary gap, see `Gate`.
    """
    inner = make_soft_backend(problem, output_mode)
    return GatedDecoder(inner, problem.n_observables, None if gate is None else Gate(problem, gate, hint=hint))
