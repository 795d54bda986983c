"""Memory of a decoding problem, estimated from a detector error model whose loops are not unrolled.

Estimates are somewhat below the measured peaks (docs/results/long-experiments.md), so that a problem that fits is not
refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import stim

from autoqec.contracts.env import EnvSpec
from autoqec.qec.codes import build_source
from autoqec.qec.problem import error_model
from autoqec.system.memory import require_bytes

# Bytes per target of an error, measured at d=5 and 9 with 100 to 1,000 rounds: 159 to 172 while a matching graph is
# built (SI1000: 266), 106 to 136 for a Tanner graph (bb72, 6 and 60 rounds); 62 to 70 afterwards.
BUILD_BYTES = {"mwpm": 150}
OTHER_BUILD_BYTES = 100
KEPT_BYTES = 60
MODEL = "model and graph"


@dataclass(frozen=True)
class ModelSize:
    """Size of a detector error model with its loops unrolled.

    Attributes:
        backend: The inner decoder.
        n_detectors: Detectors.
        n_errors: Error mechanisms.
        n_targets: Detectors, observables and separators of all of them.
        n_parts: Different parts of error mechanisms, edges of a matching graph of all sectors; a part that the
            repetitions of a loop share counts in each of them.
    """

    backend: str
    n_detectors: int
    n_errors: int
    n_targets: int
    n_parts: int

    @classmethod
    def of(cls, dem: stim.DetectorErrorModel, backend: str) -> ModelSize:
        """Count what a model has, without unrolling its loops."""
        return cls(backend, dem.num_detectors, *_count(dem))

    @classmethod
    def of_env(cls, env: EnvSpec, p: float | None) -> ModelSize:
        """Count what the model of an env has at an error rate.

        Raises:
            UsageError: The circuit cannot be built or decoded.
        """
        return cls.of(error_model(build_source(env, p), env), env.backend)

    @property
    def n_edges(self) -> int:
        """Return about how many variables the graph has."""
        return self.n_parts if self.backend == "mwpm" else self.n_errors

    @property
    def kept_bytes(self) -> int:
        """Return the memory of the problem."""
        return KEPT_BYTES * self.n_targets

    @property
    def build_bytes(self) -> int:
        """Return the peak while the problem is built."""
        return BUILD_BYTES.get(self.backend, OTHER_BUILD_BYTES) * self.n_targets


def require_problem_memory(env: EnvSpec) -> None:
    """Check that the problems of an env can be built, at every p.

    Raises:
        UsageError: The machine has less memory, or a circuit cannot be built or decoded.
    """
    sizes = [ModelSize.of_env(env, p) for p in env.points]
    largest = max(size.build_bytes - size.kept_bytes for size in sizes)
    needed = {f"{MODEL} at every p": sum(size.kept_bytes for size in sizes) + largest}
    require_bytes(needed, f"env `{env.name}`", "choose fewer rounds or a smaller distance")


def _count(dem: stim.DetectorErrorModel) -> tuple[int, int, int]:
    """Return the numbers of errors, targets and different parts."""
    n_errors = n_targets = n_parts = 0
    parts: set[tuple[str, ...]] = set()
    for instruction in dem:
        if isinstance(instruction, stim.DemRepeatBlock):
            counts = _count(instruction.body_copy())
            errors, targets, repeated = (instruction.repeat_count * count for count in counts)
            n_errors, n_targets, n_parts = n_errors + errors, n_targets + targets, n_parts + repeated
        elif instruction.type == "error":
            groups = instruction.target_groups()
            n_errors += 1
            n_targets += sum(map(len, groups)) + len(groups) - 1
            parts.update(tuple(sorted(map(str, group))) for group in groups)
    return n_errors, n_targets, n_parts + len(parts)
