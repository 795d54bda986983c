"""Every way to specify a code: generator, circuit, DEM, check matrices; and biased noise."""

from __future__ import annotations

import numpy as np
import pytest
import stim

from autoqec.contracts.env import (
    BiasedNoise,
    CircuitDepolarizing,
    CssFileCode,
    DemFileCode,
    EnvSpec,
    FileNoise,
    StimGeneratorCode,
)
from autoqec.errors import UsageError
from autoqec.qec.backends import make_backend
from autoqec.qec.codes import biased
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, sample
from tests.support.envs import BANDS, problem

STEANE = """
hx: ["0001111", "0110011", "1010101"]
hz: ["0001111", "0110011", "1010101"]
lz: ["1111111"]
"""


def css(text: str, backend: str = "bposd", basis: str = "z") -> EnvSpec:
    return EnvSpec(
        name="steane",
        code=CssFileCode(path="steane.yaml", text=text, basis=basis),  # type: ignore[arg-type]
        noise=CircuitDepolarizing(p=(0.05,), target_p=0.05),
        seed_policy=BANDS,
        backend=backend,  # type: ignore[arg-type]
        baselines=("bposd0",),
    )


def failures(prob: Problem, backend: str, n: int = 4000) -> float:
    shots = sample(prob, n, 3)
    return float((make_backend(backend, prob).decode(shots.detection_events) != shots.observables).any(axis=1).mean())


@pytest.mark.parametrize("basis", ["z", "x"])
def test_check_matrices_of_the_steane_code(basis: str) -> None:
    """Three checks per sector; single flips are corrected and pairs are not, so that the LER is about 21 q^2."""
    prob = Problem.from_env(css(STEANE, basis=basis))
    assert (prob.n_detectors, prob.n_observables) == (6, 1)
    ler = failures(prob, "bposd")
    q = 2 / 3 * 0.05  # probability that a qubit's relevant flip happens
    assert 0.7 * 21 * q**2 < ler < 2 * 21 * q**2  # belief propagation is not optimal with loops this short


def test_logicals_are_derived_if_none_are_given() -> None:
    without = Problem.from_env(css(STEANE.replace('lz: ["1111111"]', "")))
    assert without.n_observables == 1
    assert failures(without, "bposd") == pytest.approx(failures(Problem.from_env(css(STEANE)), "bposd"), abs=0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('hx: ["11"]', "expected the keys hx and hz"),
        ('hx: ["11"]\nhz: ["10"]', "do not commute"),
        ('hx: ["11"]\nhz: ["12"]', "key hz.*rows such as"),
        ('hx: ["11"]\nhz: ["11", "1"]', "key hz.*differ in length"),
        ('hx: ["11"]\nhz: ["1111"]', "differ in width"),
        ('hx: ["1100"]\nhz: ["1111"]\nlz: ["1000"]', "logical operator does not commute"),
    ],
)
def test_invalid_matrices_name_their_position(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Problem.from_env(css(text))


def dem_env(text: str) -> EnvSpec:
    return EnvSpec(name="model", code=DemFileCode(path="m.dem", text=text), noise=FileNoise(), seed_policy=BANDS)


def test_dem_decodes_like_the_circuit_it_came_from() -> None:
    generated = problem(3, 0.01)
    away = Problem.from_env(dem_env(str(generated.dem)))
    shots = sample(generated, 3000, 1)
    assert np.array_equal(
        make_backend("mwpm", away).decode(shots.detection_events),
        make_backend("mwpm", generated).decode(shots.detection_events),
    )
    drawn = sample(away, 5000, 2)
    assert drawn.detection_events.shape[1] == 3 and drawn.observables.any()
    assert LabelledSampler(away, 1).draw(10).edges.shape == (10, generated.graph.n_edges)
    with pytest.raises(UsageError, match="no circuit"):
        _ = away.circuit


def test_dem_with_hyperedges_needs_another_backend() -> None:
    with pytest.raises(UsageError, match="bposd"):
        Problem.from_env(dem_env("error(0.1) D0 D1 D2 L0\nerror(0.1) D0 D1"))


def test_malformed_dem_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot build"):
        Problem.from_env(dem_env("nonsense"))


def test_bias_keeps_the_total_strength_and_shifts_it_to_phase_flips() -> None:
    circuit = stim.Circuit("H 0\nREPEAT 3 {\n DEPOLARIZE1(0.01) 0\n DEPOLARIZE2(0.03) 0 1\n}")
    block = biased(circuit, 10.0)[1].body_copy()
    single, pair = (instruction.gate_args_copy() for instruction in block)
    assert sum(single) == pytest.approx(0.01) and single[2] == pytest.approx(0.01 * 10 / 11)
    assert sum(pair) == pytest.approx(0.03)
    assert [pair[k] for k in (2, 11, 14)] == pytest.approx([0.03 * 10 / 33] * 3)  # IZ, ZI, ZZ
    assert stim.Circuit(f"PAULI_CHANNEL_2({','.join(map(str, pair))}) 0 1").num_qubits == 2


def test_phase_bias_lowers_the_error_rate_of_z_memory() -> None:
    def ler(noise: CircuitDepolarizing, basis: str) -> float:
        code = StimGeneratorCode(task=f"surface_code:rotated_memory_{basis}", distance=3, rounds=3)  # type: ignore[arg-type]
        env = EnvSpec(name="s", code=code, noise=noise, seed_policy=BANDS)
        return failures(Problem.from_env(env), "mwpm", 20_000)

    even, strong = CircuitDepolarizing(p=(0.01,), target_p=0.01), BiasedNoise(p=(0.01,), target_p=0.01, eta=100)
    assert ler(strong, "z") < 0.8 * ler(even, "z")
    assert ler(strong, "x") > ler(even, "x")


def colour(d: int, backend: str, rounds: int | None = None) -> EnvSpec:
    return EnvSpec(
        name="colour",
        code=StimGeneratorCode(task="color_code:memory_xyz", distance=d, rounds=rounds or d),
        noise=CircuitDepolarizing(p=(0.003,), target_p=0.003),
        seed_policy=BANDS,
        backend=backend,  # type: ignore[arg-type]
        baselines=("mwpm",) if backend == "mwpm" else ("bposd_cs10",),
    )


def test_belief_propagation_decodes_the_colour_code() -> None:
    prob = Problem.from_env(colour(5, "bposd"))
    assert (prob.n_detectors, prob.n_observables) == (45, 1) and prob.H.sum(axis=0).max() > 2
    plain = sample(prob, 500, 3).observables.any(axis=1).mean()
    assert failures(prob, "bposd_cs10", 500) < 0.25 * plain


def test_colour_code_has_no_matching_graph() -> None:
    with pytest.raises(UsageError, match="matching graph.*backend: bposd"):
        Problem.from_env(colour(5, "mwpm"))


@pytest.mark.parametrize(("d", "rounds"), [(4, 4), (3, 1)])
def test_refused_generator_arguments_have_a_hint(d: int, rounds: int) -> None:
    with pytest.raises(UsageError, match="stim cannot build.*choose another distance or number of rounds"):
        Problem.from_env(colour(d, "bposd", rounds))
