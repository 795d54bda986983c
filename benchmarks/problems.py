"""Problems that the benchmarks use."""

from __future__ import annotations

from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
from autoqec.qec.problem import Problem


def surface(distance: int, p: float = 0.005, rounds: int | None = None) -> Problem:
    """Return the rotated surface code, memory Z, with stim's noise parameters all equal to p; by default d rounds."""
    return Problem.from_env(
        EnvSpec(
            name=f"surface_d{distance}" if rounds is None else f"surface_d{distance}_r{rounds}",
            code=StimGeneratorCode(task="surface_code:rotated_memory_z", distance=distance, rounds=rounds or distance),
            noise=CircuitDepolarizing(p=(p,), target_p=p),
            seed_policy=SeedPolicy(train=(0, 9), val=(10, 19), holdout=(20, 29)),
        )
    )
