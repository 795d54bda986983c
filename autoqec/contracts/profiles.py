"""Profiles: named amounts of shots and training, with limits of time and memory; and the limits of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.errors import UsageError

ProfileName = Literal["smoke", "dev", "prod"]
MIN_SCALE, MAX_SCALE = 0.01, 1000.0
REFERENCE_EDGES = 301  # of the matching graph of the rotated surface code at d=5 with 5 rounds, which `dev` suits
MAX_DEFAULT_SCALE = 5.0
GROWING = ("dev",)  # smoke is for trying things out, and the amounts of prod suffice


class Profile(Contract):
    """Amounts of work are shots and floating-point operations, so that rounds are reproducible; seconds are limits."""

    name: ProfileName = Field(description="name of the profile")
    train_shots: int = Field(description="labelled shots for training on edge labels")
    finetune_shots: int = Field(description="shots near failure for fine-tuning through the matching")
    train_gflops: int = Field(description="cap on forward and backward work; large nets take fewer steps")
    val_shots: int = Field(description="validation shots per round, the same for every round of an env and profile")
    judge_test_shots: int = Field(description="at most, for the sequential test")
    judge_effect_shots: int = Field(description="second draw at the target p, for the published effect")
    judge_point_shots: int = Field(description="per other p of the env")
    round_wallclock_s: int = Field(description="limit at which the Runner's child process is killed")
    judge_wallclock_s: int = Field(description="limit at which the candidate process is killed")
    memory_gb: float = Field(description="limit at which the Runner's child process is killed")
    disk_mb: int = Field(description="artifacts of one round")

    def with_scale(self, scale: float) -> Profile:
        """Return the profile with amounts of training and verification times `scale`; limits of time never shrink.

        Validation shots stay, so that rounds of an env and profile are measured on the same shots.
        """
        amounts = (
            "train_shots", "finetune_shots", "train_gflops", "judge_test_shots", "judge_effect_shots",
            "judge_point_shots",
        )  # fmt: skip
        scaled = {name: max(1, round(getattr(self, name) * scale)) for name in amounts}
        for limit in ("round_wallclock_s", "judge_wallclock_s"):
            scaled[limit] = round(getattr(self, limit) * max(1.0, scale))
        return self.model_copy(update=scaled)

    def scaled(self, share: float) -> Profile:
        """Return the profile with this share of validation and verification shots and the same training and limits."""
        names = ("val_shots", "judge_test_shots", "judge_effect_shots", "judge_point_shots")
        return self.model_copy(update={name: max(1, round(getattr(self, name) * share)) for name in names})


# Not validated here, which would take 5 ms at the start of every process.
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile.model_construct(
            name="smoke",
            train_shots=131_072,
            finetune_shots=512,
            train_gflops=100,
            val_shots=20_000,
            judge_test_shots=20_000,
            judge_effect_shots=10_000,
            judge_point_shots=4_000,
            round_wallclock_s=120,
            judge_wallclock_s=120,
            memory_gb=4.0,
            disk_mb=64,
        ),
        Profile.model_construct(
            name="dev",
            train_shots=1_750_000,
            finetune_shots=90_000,
            train_gflops=3_000,
            val_shots=20_000,
            judge_test_shots=100_000,
            judge_effect_shots=100_000,
            judge_point_shots=20_000,
            round_wallclock_s=900,
            judge_wallclock_s=600,
            memory_gb=8.0,
            disk_mb=256,
        ),
        Profile.model_construct(
            name="prod",
            train_shots=200_000_000,
            finetune_shots=5_000_000,
            train_gflops=2_000_000,
            val_shots=200_000,
            judge_test_shots=2_000_000,
            judge_effect_shots=1_000_000,
            judge_point_shots=200_000,
            round_wallclock_s=6 * 3600,
            judge_wallclock_s=3 * 3600,
            memory_gb=64.0,
            disk_mb=4096,
        ),
    )
}


def profile_of(name: str, scale: float = 1.0) -> Profile:
    """Return a profile by name, with its amounts times `scale`.

    Raises:
        UsageError: There is no such profile, or the scale is out of range.
    """
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}", location="--profile", hint=f"one of {', '.join(PROFILES)}")
    if not MIN_SCALE <= scale <= MAX_SCALE:
        message = f"the scale {scale:g} lies outside {MIN_SCALE:g} to {MAX_SCALE:g}"
        raise UsageError(message, location="--scale", hint="choose another scale or profile")
    return PROFILES[name] if scale == 1 else PROFILES[name].with_scale(scale)


def default_scale(name: str, n_edges: int) -> float:
    """Return the scale of a run for which none is chosen.

    A shot costs operations in proportion to the edges, so that a fixed amount trains a larger matching graph on fewer
    shots. Amounts of profiles in `GROWING` grow with the edges, from those of the surface code at d=5.

    Args:
        name: The name of a profile.
        n_edges: Edges of the matching graph.
    """
    return min(MAX_DEFAULT_SCALE, max(1.0, round(n_edges / REFERENCE_EDGES, 2))) if name in GROWING else 1.0


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run; None means no limit.

    Attributes:
        rounds: Finished rounds in total.
        hours: Wall-clock hours since this process started the loop.
        compute_hours: Hours of training and measurement of all rounds together.
        cpu_hours: The part of `compute_hours` of rounds without a GPU.
        gpu_hours: The part of `compute_hours` of rounds with a GPU.
        plateau: Consecutive finished rounds that did not change the verified Pareto front.
    """

    rounds: int | None = None
    hours: float | None = None
    compute_hours: float | None = None
    cpu_hours: float | None = None
    gpu_hours: float | None = None
    plateau: int | None = None
