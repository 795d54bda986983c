"""Sizes of models whose loops are not unrolled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.locate import builtin_envs
from autoqec.qec.env_summary import suggest_backend, summarize_env
from autoqec.qec.problem import Problem, error_model
from autoqec.qec.problem_memory import ModelSize, count_rounds
from autoqec.store.files import load_env
from autoqec.system import memory
from tests.support.envs import repetition, surface

LOOP = """
error(0.1) D0 D1 ^ D1 L0
repeat 1000000000000 {
    error(0.1) D0 D2
    error(0.1) D0 D2 ^ D1
    error(0.1) D0 D4
    repeat 3 {
        error(0.1) D3
    }
    shift_detectors 4
}
detector D7
"""


def test_loops_count_as_often_as_they_repeat() -> None:
    """What no path joins to an observable is not decoded: D3, and D1 of all repetitions but the first."""
    size, n = ModelSize.of(stim.DetectorErrorModel(LOOP), surface(3)), 10**12
    assert (size.n_errors, size.n_targets) == (1 + 6 * n, 5 + 11 * n)
    assert size.n_edges == 3 + 2 * n
    assert size.n_detectors == 4 * n + 8


BICYCLE = load_env(builtin_envs()["bb72_circuit"])[0]
CIRCUITS = {
    "surface-d3-r3": surface(3),
    "surface-d3-r30": surface(3, rounds=30),
    "surface-x": surface(3, basis="x", rounds=12),
    "repetition": repetition(),
    "bicycle-sector": BICYCLE,
    "colour": load_env(builtin_envs()["colour_d5_depol"])[0],
}


@pytest.mark.parametrize("env", CIRCUITS.values(), ids=CIRCUITS)
def test_sizes_equal_those_of_the_problem(env: EnvSpec) -> None:
    found, problem = ModelSize.of_env(env, env.target), Problem.from_env(env)
    targets = sum(len(each.targets_copy()) for each in problem.dem if each.type == "error")
    assert (found.n_detectors, found.n_errors) == (problem.n_detectors, problem.n_mechanisms)
    assert (found.n_targets, found.n_edges) == (targets, problem.graph.n_edges)


def test_sector_of_a_model_without_coordinates_counts_all_errors() -> None:
    dem = stim.DetectorErrorModel("error(0.1) D0 D1 L0\nerror(0.1) D0 L0")
    assert ModelSize.of(dem, BICYCLE).n_edges == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("error(0.1) D0 L0", 0),
        ("detector(5, 1) D0\ndetector(6, 1) D1\ndetector(5, 2) D2", 2),
        ("detector(0, 0, 1, 9) D0\nrepeat 1000000000000 {\nshift_detectors(0, 0, 1) 1\ndetector(0, 0, 1, 8) D0\n"
         "detector(0, 0, 2) D1\n}\ndetector(0, 0, 7) D3", 10**12 + 3),
    ],
)  # fmt: skip
def test_rounds_are_counted_without_unrolling_loops(text: str, expected: int) -> None:
    """A repetition has detectors of two times, one of which is the next repetition's first."""
    assert count_rounds(stim.DetectorErrorModel(text)) == expected


def test_memory_grows_with_the_rounds() -> None:
    env = surface(5)
    task = "surface_code:rotated_memory_z"
    circuits = [stim.Circuit.generated(task, distance=5, rounds=r, after_clifford_depolarization=0.01)
                for r in (1000, 10**9)]  # fmt: skip
    short, long = (ModelSize.of(error_model(circuit, env), env) for circuit in circuits)
    assert long.build_bytes / short.build_bytes == pytest.approx(1e6, rel=0.01)
    assert short.kept_bytes < short.build_bytes


@pytest.mark.parametrize("check", [suggest_backend, lambda env: summarize_env(env, 10)])
def test_env_larger_than_memory_is_rejected_before_it_is_built(
    check: Callable[[EnvSpec], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = surface(5, rounds=1000)
    monkeypatch.setattr(memory, "available_bytes", lambda: int(1e8))
    monkeypatch.setattr(Problem, "from_env", None)
    with pytest.raises(UsageError, match="needs about .* 0.1 GB available") as caught:
        check(env)
    assert caught.value.location == "env `surface_d5_z`"
