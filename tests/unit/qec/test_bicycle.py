"""The [[72,12,6]] code: its checks, its logicals, its experiment."""

from __future__ import annotations

import numpy as np
import pytest

from autoqec.contracts.env import BicycleCode, BpSettings, CircuitDepolarizing, EnvSpec
from autoqec.qec import bicycle
from autoqec.qec.backends import make_soft
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from tests.support.envs import BANDS

BB72 = BicycleCode()


def small(rounds: int = 1, p: float = 0.005) -> EnvSpec:
    return EnvSpec(
        name="bb72_short",
        code=BicycleCode(rounds=rounds),
        noise=CircuitDepolarizing(p=(p,), target_p=p),
        seed_policy=BANDS,
        backend="bposd",
        bp=BpSettings(iterations=20),
        baselines=("bposd0", "bposd_cs10"),
    )


def test_checks_commute_and_leave_twelve_logicals() -> None:
    hx, hz = bicycle.checks(BB72.width, BB72.height, BB72.a, BB72.b)
    assert hx.shape == hz.shape == (36, 72)
    assert not (hx @ hz.T % 2).any()
    assert (hx.sum(axis=1) == 6).all()
    lz, lx = bicycle.logicals(hx, hz), bicycle.logicals(hz, hx)
    assert len(lz) == len(lx) == 12
    assert not (hx @ lz.T % 2).any() and not (hz @ lx.T % 2).any()
    pairing, _ = bicycle.row_reduce(lx @ lz.T % 2)
    assert len(pairing) == 12  # every logical is seen by some conjugate: none is a stabilizer


def test_every_layer_touches_a_qubit_at_most_once_and_all_checks_are_measured() -> None:
    hx, hz = bicycle.checks(BB72.width, BB72.height, BB72.a, BB72.b)
    layers = bicycle.cnot_layers(BB72.width, BB72.height, BB72.a, BB72.b)
    met_x, met_z = np.zeros_like(hx), np.zeros_like(hz)
    for pairs in layers:
        assert len(set(pairs)) == len(pairs)
        for control, target in zip(pairs[::2], pairs[1::2], strict=True):
            if control >= 72:
                met_x[control - 72, target] += 1
            else:
                met_z[target - 108, control] += 1
    assert np.array_equal(met_x, hx) and np.array_equal(met_z, hz)


@pytest.mark.parametrize("basis", ["z", "x"])
def test_experiment_is_deterministic_without_noise(basis: str) -> None:
    circuit = bicycle.memory_circuit(BB72.width, BB72.height, BB72.a, BB72.b, 3, 0.0, basis)
    detectors, observables = circuit.compile_detector_sampler(seed=1).sample(20, separate_observables=True)
    assert detectors.shape[1] == 36 * 2 + 72 * 2 and observables.shape[1] == 12
    assert not detectors.any() and not observables.any()
    assert circuit.without_noise().detector_error_model().num_errors == 0


def test_no_logical_lighter_than_six_is_found_and_one_of_six_is() -> None:
    circuit = bicycle.memory_circuit(BB72.width, BB72.height, BB72.a, BB72.b, 1, 0.001)
    found = circuit.search_for_undetectable_logical_errors(
        dont_explore_detection_event_sets_with_size_above=6,
        dont_explore_edges_with_degree_above=3,
        dont_explore_edges_increasing_symptom_degree=False,
    )
    assert len(found) == 6


def test_bp_osd_decodes_it_and_the_priors_change_nothing() -> None:
    prob = Problem.from_env(small())
    shots = sample(prob, 300, 5)
    backend = make_soft(prob)
    plain = backend.decode(shots.detectors)
    assert plain.shape == (300, prob.n_observables)
    failed = (plain != shots.observables).any(axis=1).mean()
    assert failed < 0.6 * shots.observables.any(axis=1).mean()
    log_odds = np.tile(prob.graph.log_odds.astype(np.float32), (300, 1))
    assert (backend.decode_soft(shots.detectors, log_odds) == plain).all(axis=1).mean() > 0.99
    assert np.array_equal(backend.decode(shots.detectors), plain)  # the priors are back in place


def test_a_certain_mechanism_is_applied() -> None:
    prob = Problem.from_env(small())
    fault = int(np.nonzero(prob.L.toarray().any(axis=0))[0][0])
    log_odds = np.full((1, prob.n_faults), -12.0, np.float32)
    log_odds[0, fault] = 12.0
    detectors = np.packbits(prob.H.T.toarray()[fault : fault + 1], axis=1, bitorder="little")
    answer = make_soft(prob).decode_soft(detectors, log_odds)
    assert np.array_equal(answer[0], prob.L.T.toarray()[fault].astype(bool))
