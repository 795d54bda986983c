"""EnvSpec: refused values and their error messages."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autoqec.contracts.env import SEED_SPACE, EnvSpec, SeedPolicy
from autoqec.locate import builtin_envs


def config(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(builtin_envs()["smoke"].read_text(encoding="utf-8"))
    return {**value, **changes}


@pytest.mark.parametrize("name", sorted(builtin_envs()))
def test_builtin_envs_have_the_name_of_their_file(name: str) -> None:
    env = EnvSpec.model_validate(yaml.safe_load(builtin_envs()[name].read_text(encoding="utf-8")))
    assert env.name == name and env.target in env.points


@pytest.mark.parametrize("p", [[0.0], [0.5], [-0.1], [1.0], [0.01, 0.7], [float("nan")], []])
def test_p_outside_its_range_is_refused(p: list[float]) -> None:
    with pytest.raises(ValidationError):
        EnvSpec.model_validate(config(noise={"model": "circuit_depolarizing", "p": p, "target_p": p[0] if p else 0.1}))


def test_target_p_must_be_listed() -> None:
    with pytest.raises(ValidationError, match="target_p"):
        EnvSpec.model_validate(config(noise={"model": "circuit_depolarizing", "p": [0.01], "target_p": 0.02}))


def test_baselines_are_validated() -> None:
    with pytest.raises(ValidationError, match="unknown baseline 'tesseracd'"):
        EnvSpec.model_validate(config(baselines=["mwpm", "tesseracd"]))
    with pytest.raises(ValidationError, match="plain backend"):
        EnvSpec.model_validate(config(baselines=["mwpm_correlated"]))


def test_time_ratio_requires_matching() -> None:
    constraints = {"max_time_ratio": 1.0}
    assert EnvSpec.model_validate(config(constraints=constraints)).constraints.max_time_ratio == 1.0
    with pytest.raises(ValidationError, match="requires backend `mwpm`"):
        EnvSpec.model_validate(config(constraints=constraints, backend="bposd", baselines=["bposd0"]))


def test_file_noise_belongs_to_file_code() -> None:
    with pytest.raises(ValidationError, match="from_file"):
        EnvSpec.model_validate(config(noise={"model": "from_file"}))
    with pytest.raises(ValidationError, match="from_file"):
        EnvSpec.model_validate(config(code={"kind": "stim_file", "path": "x.stim"}))


def test_unknown_keys_are_named() -> None:
    with pytest.raises(ValidationError, match="basline"):
        EnvSpec.model_validate(config(basline="mwpm"))
    with pytest.raises(ValidationError, match="calibration"):
        EnvSpec.model_validate(config(seed_policy={**config()["seed_policy"], "calibration": [1, 2]}))


@given(st.permutations([(0, 9), (10, 19), (20, 29)]), st.integers(0, 2), st.integers(0, 2))
def test_bands_overlap_in_any_order(bands: list[tuple[int, int]], grown: int, by: int) -> None:
    SeedPolicy(train=bands[0], val=bands[1], holdout=bands[2])
    low, high = bands[grown]
    bands[grown] = (max(0, low - 1 - by), high + 1 + by)  # touches at least one neighbour
    with pytest.raises(ValidationError, match="overlap"):
        SeedPolicy(train=bands[0], val=bands[1], holdout=bands[2])


@pytest.mark.parametrize("band", [(5, 4), (-1, 3), (0, SEED_SPACE)])
def test_bands_lie_below_the_seeds_of_verification(band: tuple[int, int]) -> None:
    with pytest.raises(ValidationError, match="band train"):
        SeedPolicy(train=band, val=(100, 200), holdout=(300, 400))


@pytest.mark.parametrize("p", [[1e-300], [0.001 + number / 1e5 for number in range(3_000)]])
def test_unusable_noise_is_refused(p: list[float]) -> None:
    with pytest.raises(ValueError, match=r"below 1e-09|at most 64 items"):
        EnvSpec.model_validate(config(noise={"model": "circuit_depolarizing", "p": p, "target_p": p[0]}))


def family(**changes: Any) -> dict[str, Any]:
    code = {"kind": "stim_generator", "task": "surface_code:rotated_memory_z", "distance": [3, 5, 5]}
    code |= {"rounds": [3, 5, 15], "target": {"distance": 5, "rounds": 5}}
    return config(code={**code, **changes})


def sizes(env: EnvSpec) -> list[tuple[int, int]]:
    return [(each.code.distance, each.code.rounds) for each in (env, *env.other_members)]  # type: ignore[union-attr]


def test_family_is_read_from_lists_and_stored_as_members() -> None:
    env = EnvSpec.model_validate(family())
    assert sizes(env) == [(5, 5), (3, 3), (5, 15)]
    stored = env.dump()
    assert "target" not in stored["code"] and len(stored["code"]["members"]) == 3
    assert EnvSpec.model_validate(stored) == env and all(not each.other_members for each in env.other_members)
    assert sizes(EnvSpec.model_validate(family(rounds=4, target={"distance": 3, "rounds": 4}, distance=[3, 5]))) == [
        (3, 4),
        (5, 4),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": [3, 5]}, "read in pairs"),
        ({"target": None}, "needs `target"),
        ({"target": {"distance": 7, "rounds": 7}}, "d=7 r=7 is not among the circuits d=3 r=3"),
        ({"target": {"distance": 5}}, "rounds"),
        ({"distance": [5, 5, 5], "rounds": [5, 5, 15]}, "each of them once"),
        ({"distance": [5], "rounds": [5]}, "two circuits or more"),
        ({"distance": [3, "x", 5]}, "valid integer"),
        ({"distance": [3, 1, 5]}, "greater than or equal to 2"),
        ({"distance": []}, "read in pairs"),
        ({"distance": [], "rounds": []}, "two circuits or more"),
        ({"distance": 5, "rounds": 5}, "`target` belongs to a family"),
        ({"distance": list(range(2, 40)), "rounds": 3, "target": {"distance": 2, "rounds": 3}}, "at most 16"),
        ({"task": ["surface_code:rotated_memory_z", "surface_code:rotated_memory_x"]}, "have the same gates"),
        ({"members": [{"distance": 3, "rounds": 3}]}, "needs `target"),
    ],
)
def test_family_with_a_mistake_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EnvSpec.model_validate(family(**changes))
