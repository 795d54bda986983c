"""Batches of shots and what a replay buffer keeps of them. This module imports numpy only: copier processes load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

TrajInfos = dict[str, np.ndarray]  # statistics by name, one value per completed trajectory
Fields = dict[str, np.ndarray]  # arrays by name, one row per shot
GAP = "Gap"  # statistic: complementary gap of the baseline's matching, in nats


@dataclass(frozen=True, eq=False)
class Samples:
    """A batch; every field that is not None has one row per shot.

    Attributes:
        detections: Detection events, uint8 [n, n_detectors].
        observables: Whether each observable flipped, bool [n, n_observables].
        edges: Labels, uint8 [n, n_edges], or float32 if they are probabilities.
        flips: Error mechanisms that a policy flipped, uint8 [n, n_faults].
        rewards: Rewards of these actions, float32 [n].
        log_probs: Log-probabilities of these actions under the policy that took them, float32 [n].
    """

    detections: np.ndarray
    observables: np.ndarray | None = None
    edges: np.ndarray | None = None
    flips: np.ndarray | None = None
    rewards: np.ndarray | None = None
    log_probs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.detections)

    def __getitem__(self, part: slice | np.ndarray) -> Samples:
        return Samples(**{name: values[part] for name, values in self.fields().items()})

    def fields(self) -> Fields:
        """Return the fields that are not None."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in found.items() if values is not None}

    def concatenated(self, other: Samples) -> Samples:
        """Return this batch followed by another with the same fields."""
        own_fields, other_fields = self.fields(), other.fields()
        return Samples(**{name: np.concatenate([own_fields[name], other_fields[name]]) for name in own_fields})


@dataclass(frozen=True)
class FieldSelection:
    """Fields of a batch that a replay buffer keeps: the value of an algorithm's `samples_to_buffer`.

    Attributes:
        names: The fields.
        bits: Those of them that are stored as bits.
    """

    names: tuple[str, ...]
    bits: tuple[str, ...] = ()

    def __call__(self, samples: Mapping[str, np.ndarray]) -> Fields:
        """Select and pack the fields to store."""
        return {
            name: np.packbits(samples[name], axis=1, bitorder="little") if name in self.bits else samples[name]
            for name in self.names
        }

    def restore(self, rows: Fields, widths: Mapping[str, int]) -> Fields:
        """Unpack rows as the sampler produced them; `widths` has the columns of fields stored as bits."""
        return {
            name: np.unpackbits(values, axis=1, count=widths[name], bitorder="little") if name in self.bits else values
            for name, values in rows.items()
        }
