"""Small envs shared by tests."""

from __future__ import annotations

from functools import lru_cache

from autoqec.contracts.env import (
    ESTIMATED,
    BicycleCode,
    BpSettings,
    CircuitDepolarizing,
    CodeMember,
    EnvSpec,
    FileNoise,
    SeedPolicy,
    StimGeneratorCode,
)
from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.qec.problem import Problem

BANDS = SeedPolicy(train=(0, 999_999), val=(1_000_000, 1_999_999), holdout=(2_000_000, 2_999_999))


def surface(d: int = 3, p: float = 0.01, basis: str = "z", rounds: int | None = None) -> EnvSpec:
    return EnvSpec(
        name=f"surface_d{d}_{basis}",
        code=StimGeneratorCode(
            task=f"surface_code:rotated_memory_{basis}",  # type: ignore[arg-type]
            distance=d,
            rounds=rounds or d,
        ),
        noise=CircuitDepolarizing(p=(p,), target_p=p),
        seed_policy=BANDS,
    )


def recorded(candidates: int = 4) -> EnvSpec:
    """Return an env of recorded shots whose files do not exist, for text about runs on it."""
    code = RecordedShotsCode(path="device.recorded.json", block_shots=100, candidates=candidates)
    noise = FileNoise()
    return EnvSpec(name="device", code=code, noise=noise, seed_policy=BANDS, baselines=("mwpm", *ESTIMATED))


def repetition(d: int = 5, p: float = 0.02) -> EnvSpec:
    return EnvSpec(
        name=f"repetition_d{d}",
        code=StimGeneratorCode(task="repetition_code:memory", distance=d, rounds=d),
        noise=CircuitDepolarizing(p=(p,), target_p=p),
        seed_policy=BANDS,
    )


def bicycle(rounds: int = 1, p: float = 0.005) -> EnvSpec:
    """Return a short memory of the [[72,12,6]] code, decoded by BP+OSD."""
    return EnvSpec(
        name="bb72_short",
        code=BicycleCode(rounds=rounds),
        noise=CircuitDepolarizing(p=(p,), target_p=p),
        seed_policy=BANDS,
        backend="bposd",
        bp=BpSettings(iterations=20),
        baselines=("bposd0", "bposd_cs10"),
    )


@lru_cache(maxsize=8)
def problem(d: int = 3, p: float = 0.01, basis: str = "z") -> Problem:
    return Problem.from_env(surface(d, p, basis))


def surface_family(*sizes: tuple[int, int], p: tuple[float, ...] = (0.01,)) -> EnvSpec:
    """Return the family of these (distance, rounds); the first one is the target."""
    target, members = sizes[0], tuple(CodeMember(distance=d, rounds=rounds) for d, rounds in sizes)
    code = StimGeneratorCode(
        task="surface_code:rotated_memory_z", distance=target[0], rounds=target[1], members=members
    )
    noise = CircuitDepolarizing(p=p, target_p=p[0])
    return EnvSpec(name="family", code=code, noise=noise, seed_policy=BANDS)
