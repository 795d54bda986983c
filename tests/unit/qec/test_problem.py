"""Problem: circuit, DEM and matching graph are consistent."""

from __future__ import annotations

import numpy as np
import pymatching
import pytest
import stim

from autoqec.contracts.env import EnvSpec, FileNoise, StimFileCode
from autoqec.errors import UsageError
from autoqec.qec.backends import make_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, band_seed, pack, sample, sparse_bits, unpack
from tests.support.envs import BANDS, problem, repetition, surface


def from_text(text: str) -> EnvSpec:
    return EnvSpec(name="written", code=StimFileCode(path="c.stim", text=text), noise=FileNoise(), seed_policy=BANDS)


@pytest.mark.parametrize("basis", ["z", "x"])
def test_edges_reproduce_detection_events_and_observables(basis: str) -> None:
    prob = problem(3, 0.01, basis)
    shots = LabelledSampler(prob, seed=5).draw(4000)
    graph = prob.graph
    assert shots.edges.any()
    events = (shots.edges @ graph.check_matrix.T.toarray()) % 2
    assert np.array_equal(events, shots.detections[:, graph.in_sector])
    assert np.array_equal((shots.edges @ graph.observables) % 2, shots.observables)


def test_incidence_matches_the_dem_sampler() -> None:
    prob = problem(3)
    detection_events, observables, faults = prob.dem.compile_sampler(seed=1).sample(3000, return_errors=True)
    assert np.array_equal((faults.astype(int) @ prob.H.T.toarray()) % 2, detection_events)
    assert np.array_equal((faults.astype(int) @ prob.L.T.toarray()) % 2, observables)


def test_edge_priors_are_the_frequencies_of_edge_flips() -> None:
    prob = problem(3, 0.01)
    n = 200_000
    counts = sum(LabelledSampler(prob, seed=seed).draw(n // 4).edges.sum(axis=0, dtype=int) for seed in range(4))
    expected = prob.graph.prior * n
    sigma = np.sqrt(n * prob.graph.prior * (1 - prob.graph.prior))
    assert np.abs((counts - expected) / sigma).max() < 4.5


def test_sectors_split_the_detectors() -> None:
    graph = problem(5, 0.005).graph
    assert len(graph.in_sector) == 72 and len(graph.out_of_sector) == 48
    assert not set(graph.in_sector) & set(graph.out_of_sector)
    assert set(np.unique(graph.endpoints)) <= {-1, *graph.in_sector.tolist()}


def test_repetition_code_has_one_sector() -> None:
    assert len(Problem.from_env(repetition()).graph.out_of_sector) == 0


def test_component_matching_equals_matching_on_the_full_dem() -> None:
    prob = problem(5, 0.01)
    shots = sample(prob, 20_000, seed=3)
    whole = pymatching.Matching.from_detector_error_model(prob.dem)
    expected = whole.decode_batch(shots.detection_events, bit_packed_shots=True).astype(bool)
    agree = (make_backend("mwpm", prob).decode(shots.detection_events) == expected).mean()
    assert agree > 0.9999  # ties between minimum matchings may fall either way


def test_hyperedges_are_refused_with_the_field() -> None:
    text = """
        R 0 1 2
        X_ERROR(0.1) 0
        CX 0 1 0 2
        M 0 1 2
        DETECTOR rec[-3]
        DETECTOR rec[-2]
        DETECTOR rec[-1]
        OBSERVABLE_INCLUDE(0) rec[-1]
    """
    with pytest.raises(UsageError, match="matching graph|detectors at once"):
        Problem.from_env(from_text(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NONSENSE 0", "cannot build"),
        ("R 0\nX_ERROR(0.1) 0\nM 0\nDETECTOR rec[-1]", "0 observables"),
        ("R 0 1\nX_ERROR(0.1) 0\nM 0 1\nDETECTOR rec[-2]\nOBSERVABLE_INCLUDE(0) rec[-1]", "flips an observable"),
    ],
)
def test_undecodable_circuits_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Problem.from_env(from_text(text))


def test_circuit_from_text_equals_the_generated_circuit() -> None:
    env = surface(3, 0.01)
    text = str(Problem.from_env(env).circuit)
    again = Problem.from_env(from_text(text))
    assert again.circuit == stim.Circuit(text)
    assert again.graph.n_edges == problem(3, 0.01).graph.n_edges
    assert again.p is None


def test_seeds_stay_inside_their_band_and_follow_their_key() -> None:
    seeds = {band_seed((10, 19), "train", k) for k in range(300)}
    assert seeds == set(range(10, 20))
    assert band_seed((0, 2**32 - 1), "a", 1) == band_seed((0, 2**32 - 1), "a", 1)
    assert band_seed((0, 2**32 - 1), "a", 1) != band_seed((0, 2**32 - 1), "a", 2)
    assert band_seed((0, 2**32 - 1), "a", "1b") != band_seed((0, 2**32 - 1), "a1", "b")


def test_packing_round_trips() -> None:
    bits = np.random.default_rng(0).integers(0, 2, (7, 21), dtype=np.uint8)
    assert np.array_equal(unpack(pack(bits), 21), bits)
    assert np.array_equal(sparse_bits(pack(bits), 21).toarray(), bits)


def test_same_seed_same_shots() -> None:
    prob = problem(3)
    first, second, other = sample(prob, 500, 9), sample(prob, 500, 9), sample(prob, 500, 10)
    assert np.array_equal(first.detection_events, second.detection_events) and np.array_equal(
        first.observables, second.observables
    )
    assert not np.array_equal(first.detection_events, other.detection_events)
