"""Problems that the benchmarks use."""

from __future__ import annotations

from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
from autoqec.qec.problem import Problem


def surface(distance: int, p: float = 0.005) -> Problem:
    return Problem.from_env(
        EnvSpec(
            name=f"surface_d{distance}",
            code=StimGeneratorCode(task="surface_code:rotated_memory_z", distance=distance, rounds=distance),
            noise=CircuitDepolarizing(p=(p,), target_p=p),
            seed_policy=SeedPolicy(train=(0, 9), val=(10, 19), holdout=(20, 29)),
        )
    )
