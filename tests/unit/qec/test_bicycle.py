"""The [[72,12,6]] bivariate bicycle code: checks, logical operators, memory experiment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import stim

from autoqec.contracts.env import BicycleCode, BpSettings, EnvSpec
from autoqec.contracts.profiles import PROFILES
from autoqec.decoders.decoding import match_edges
from autoqec.errors import UsageError
from autoqec.qec import bicycle
from autoqec.qec.backends import make_backend, make_soft_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, sample
from autoqec.store.files import load_env
from tests.support.envs import bicycle as bicycle_env

BB72 = BicycleCode()
BUILTIN = Path(__file__).parents[3] / "autoqec" / "envs" / "builtin"


def test_checks_commute_and_give_twelve_logicals() -> None:
    hx, hz = bicycle.checks(BB72.width, BB72.height, BB72.a, BB72.b)
    assert hx.shape == hz.shape == (36, 72)
    assert not (hx @ hz.T % 2).any()
    assert (hx.sum(axis=1) == 6).all()
    lz, lx = bicycle.logicals(hx, hz), bicycle.logicals(hz, hx)
    assert len(lz) == len(lx) == 12
    assert not (hx @ lz.T % 2).any() and not (hz @ lx.T % 2).any()
    pairing, _ = bicycle.row_reduce(lx @ lz.T % 2)
    assert len(pairing) == 12  # every logical anticommutes with a conjugate one, so that none is a stabilizer


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
    detection_events, observables = circuit.compile_detector_sampler(seed=1).sample(20, separate_observables=True)
    assert detection_events.shape[1] == 36 * 2 + 72 * 2 and observables.shape[1] == 12
    assert not detection_events.any() and not observables.any()
    assert circuit.without_noise().detector_error_model().num_errors == 0


def test_minimum_weight_of_logicals_found_is_six() -> None:
    circuit = bicycle.memory_circuit(BB72.width, BB72.height, BB72.a, BB72.b, 1, 0.001)
    found = circuit.search_for_undetectable_logical_errors(
        dont_explore_detection_event_sets_with_size_above=6,
        dont_explore_edges_with_degree_above=3,
        dont_explore_edges_increasing_symptom_degree=False,
    )
    assert len(found) == 6


def test_bp_osd_decodes_and_equal_priors_change_nothing() -> None:
    prob = Problem.from_env(bicycle_env())
    shots = sample(prob, 300, 5)
    backend = make_soft_backend(prob)
    plain = backend.decode(shots.detection_events)
    assert plain.shape == (300, prob.n_observables)
    failed = (plain != shots.observables).any(axis=1).mean()
    assert failed < 0.6 * shots.observables.any(axis=1).mean()
    log_odds = np.tile(prob.graph.log_odds.astype(np.float32), (300, 1))
    assert (backend.decode_soft(shots.detection_events, log_odds) == plain).all(axis=1).mean() > 0.99
    assert np.array_equal(backend.decode(shots.detection_events), plain)  # the priors are restored


def test_certain_mechanism_is_applied() -> None:
    prob = Problem.from_env(bicycle_env())
    fault = int(np.nonzero(prob.L.toarray().any(axis=0))[0][0])
    log_odds = np.full((1, prob.n_mechanisms), -12.0, np.float32)
    log_odds[0, fault] = 12.0
    detection_events = np.packbits(prob.H.T.toarray()[fault : fault + 1], axis=1, bitorder="little")
    answer = make_soft_backend(prob).decode_soft(detection_events, log_odds)
    assert np.array_equal(answer[0], prob.L.T.toarray()[fault].astype(bool))


def sector(which: float | None = 1, p: float = 0.005) -> EnvSpec:
    """Return a Z memory env; detectors of Z checks have 1 as their last coordinate."""
    return bicycle_env(rounds=2, p=p).model_copy(update={"bp": BpSettings(iterations=20, sector=which)})


class TestSector:
    def test_equivalent_mechanisms_are_merged_with_odd_parity_probability(self) -> None:
        prob = Problem.from_env(sector())
        graph = prob.graph
        columns = np.vstack([graph.check_matrix.toarray(), graph.observables.T])
        assert columns.shape == (36 * 3 + 12, graph.n_edges) and columns[:108].any(axis=0).all()
        assert len(np.unique(columns, axis=1).T) == graph.n_edges < prob.n_mechanisms / 5
        odd = (1 - np.exp(graph.mechanism_to_edge.T @ np.log(1 - 2 * prob.mechanism_probs))) / 2
        assert np.allclose(graph.prior, odd)
        assert sorted([*graph.in_sector, *graph.out_of_sector]) == list(range(prob.n_detectors))

    def test_labels_explain_the_sector_and_the_observables(self) -> None:
        prob = Problem.from_env(sector())
        graph = prob.graph
        drawn = LabelledSampler(prob, 3).draw(300)
        assert np.array_equal(drawn.edges @ graph.check_matrix.T.toarray() & 1, drawn.detections[:, graph.in_sector])
        assert np.array_equal((drawn.edges @ graph.observables & 1).astype(bool), drawn.observables)

    def test_sector_is_decoded_alone_and_the_joint_decoder_decodes_all(self) -> None:
        prob = Problem.from_env(sector())
        shots = sample(prob, 80, 5)
        backend = make_soft_backend(prob)
        plain = backend.decode(shots.detection_events)
        # Belief propagation on 17,000 mechanisms, most of them equivalent, converges worse than on one sector.
        joint = (make_backend("bposd_joint", prob).decode(shots.detection_events) != shots.observables).any(axis=1)
        assert (plain != shots.observables).any(axis=1).sum() < joint.sum() < 0.9 * len(shots)
        noise = shots.detection_events.copy()
        mask = np.zeros((1, prob.n_detectors), np.uint8)
        mask[0, prob.graph.out_of_sector] = 1
        noise ^= np.packbits(mask, axis=1, bitorder="little")
        assert np.array_equal(backend.decode(noise), plain)  # the other sector is ignored
        log_odds = np.tile(prob.graph.log_odds.astype(np.float32), (80, 1))
        assert (backend.decode_soft(shots.detection_events, log_odds) == plain).all(axis=1).mean() > 0.95

    def test_variables_are_the_same_at_another_p(self) -> None:
        reference, rescaled = Problem.from_env(sector()), Problem.from_env(sector(p=0.001))
        assert np.array_equal(match_edges(reference.graph, rescaled.graph), np.arange(reference.graph.n_edges))

    def test_model_of_fewer_detectors_is_a_problem_of_its_own_size(self) -> None:
        """`autoqec decode --dem` builds such a problem before it refuses the model."""
        prob = Problem.from_env(sector())
        last = int(prob.graph.in_sector[0])
        fewer = prob.with_dem(stim.DetectorErrorModel(f"error(0.1) D{last} L0"))
        assert fewer.n_detectors == last + 1 < prob.n_detectors and fewer.graph.in_sector[-1] == last

    def test_sector_without_detectors_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no detector has 7 as its last coordinate; the values are 0, 1"):
            Problem.from_env(sector(7))

    def test_sector_that_detects_no_observable_flip_is_refused(self) -> None:
        with pytest.raises(UsageError, match="flips an observable and no detector of this sector"):
            Problem.from_env(sector(0))

    def test_sector_setting_is_refused_for_matching(self) -> None:
        bp, baselines = BpSettings(sector=1), ("mwpm",)
        with pytest.raises(ValueError, match="matching determines its sector itself"):
            EnvSpec.model_validate({**bicycle_env().dump(), "backend": "mwpm", "bp": bp.dump(), "baselines": baselines})


def test_builtin_env_decodes_z_checks_with_fewer_verification_shots() -> None:
    env, _ = load_env(BUILTIN / "bb72_circuit.yaml")
    graph = Problem.from_env(env).graph
    assert (len(graph.in_sector), graph.n_edges) == (36 * 7, 2232)
    dev = PROFILES["dev"]
    scaled = dev.scaled(env.protocol.shots_share)
    assert (scaled.val_shots, scaled.judge_test_shots) == (dev.val_shots // 10, dev.judge_test_shots // 10)
    assert (scaled.train_shots, scaled.round_wallclock_s) == (dev.train_shots, dev.round_wallclock_s)
