"""Profiles: their amounts, and the scale of a run."""

from __future__ import annotations

import pytest

from autoqec.contracts.profiles import PROFILES, Profile, default_scale, profile_of
from autoqec.errors import UsageError


def test_scale_multiplies_training_and_verification() -> None:
    smoke, doubled, halved = PROFILES["smoke"], profile_of("smoke", 2.0), profile_of("smoke", 0.5)
    for name in ("train_shots", "finetune_shots", "train_gflops", "judge_test_shots", "judge_effect_shots"):
        assert getattr(doubled, name) == 2 * getattr(smoke, name) == 4 * getattr(halved, name)
    assert doubled.judge_point_shots == 2 * smoke.judge_point_shots
    assert {doubled.val_shots, halved.val_shots} == {smoke.val_shots}, "rounds stay comparable"
    assert (doubled.round_wallclock_s, doubled.judge_wallclock_s) == (240, 240)
    assert halved.round_wallclock_s == smoke.round_wallclock_s, "start-up does not shrink"
    assert profile_of("smoke") is smoke and profile_of("smoke", 0.01).finetune_shots == 5


def test_profiles_are_what_validation_makes_of_them() -> None:
    for profile in PROFILES.values():
        assert repr(Profile(**profile.dump())) == repr(profile), "with the same types: 4.0, not 4"


@pytest.mark.parametrize(
    ("profile", "edges", "expected"),
    [("dev", 55, 1.0), ("dev", 301, 1.0), ("dev", 602, 2.0), ("dev", 883, 2.93), ("dev", 10**6, 5.0),
     ("smoke", 10**6, 1.0), ("prod", 10**6, 1.0)],
)  # fmt: skip
def test_default_scale_of_dev_grows_with_the_matching_graph_up_to_a_cap(
    profile: str, edges: int, expected: float
) -> None:
    assert default_scale(profile, edges) == expected


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.001, 1e4, float("nan"), float("inf")])
def test_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(UsageError, match="lies outside 0.01 to 1000"):
        profile_of("smoke", scale)
