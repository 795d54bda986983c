"""Conformance suite for inner decoders."""

from __future__ import annotations

import numpy as np
import pymatching
import pytest

from autoqec.contracts.env import GRAPH_BACKENDS
from autoqec.errors import UsageError
from autoqec.qec.backends import BACKENDS, make_backend, make_soft_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, pack, sample, unpack
from tests.support.envs import problem, repetition

NAMES = sorted(BACKENDS)  # every decoder decodes graphs


@pytest.mark.parametrize("name", NAMES)
class TestEveryBackend:
    def test_shape_and_kind(self, name: str) -> None:
        prob = problem(3)
        answers = make_backend(name, prob).decode(sample(prob, 100, 1).detection_events)
        assert answers.shape == (100, 1) and answers.dtype == bool

    def test_empty_syndrome_flips_nothing(self, name: str) -> None:
        prob = problem(3)
        assert not make_backend(name, prob).decode(np.zeros((3, 3), np.uint8)).any()

    def test_single_mechanisms_are_corrected(self, name: str) -> None:
        prob = problem(3)
        answers = make_backend(name, prob).decode(pack(prob.H.T.toarray()))
        right = (answers == prob.L.T.toarray().astype(bool)).all(axis=1)
        # Matching is exact; belief propagation may rarely prefer two likelier mechanisms to an unlikely one.
        assert (
            right.all()
            if name in GRAPH_BACKENDS
            else prob.mechanism_probs[~right].sum() < 0.02 * prob.mechanism_probs.sum()
        )

    def test_decodes_better_than_no_decoder(self, name: str) -> None:
        prob = problem(3)
        shots = sample(prob, 5000, 2)
        failed = (make_backend(name, prob).decode(shots.detection_events) != shots.observables).any(axis=1)
        assert failed.mean() < 0.5 * shots.observables.any(axis=1).mean()

    def test_predictions_do_not_depend_on_the_batch(self, name: str) -> None:
        prob = problem(3)
        detection_events = sample(prob, 300, 4).detection_events
        backend = make_backend(name, prob)
        together = backend.decode(detection_events)
        parts = np.concatenate([backend.decode(detection_events[i : i + 37]) for i in range(0, 300, 37)])
        assert np.array_equal(together, parts)

    def test_empty_batch(self, name: str) -> None:
        prob = problem(3)
        assert make_backend(name, prob).decode(np.zeros((0, 3), np.uint8)).shape == (0, 1)


def test_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="mwpm_correlated"):
        make_backend("oracle", problem(3))


class TestSoftPriors:
    def test_priors_as_soft_input_change_nothing(self) -> None:
        prob = problem(3)
        backend = make_soft_backend(prob)
        detection_events = sample(prob, 2000, 1).detection_events
        log_odds = np.tile(prob.graph.log_odds.astype(np.float32), (2000, 1))
        assert (backend.decode_soft(detection_events, log_odds) == backend.decode(detection_events)).mean() > 0.999

    @pytest.mark.parametrize("which", ["z", "x", "repetition"])
    def test_predictions_equal_a_matching_built_edge_by_edge(self, which: str) -> None:
        """Equal weights give equal predictions, also for negative weights."""
        prob = Problem.from_env(repetition(3)) if which == "repetition" else problem(3, 0.01, which)
        graph = prob.graph
        rng = np.random.default_rng(0)
        n = 200
        detection_events = sample(prob, n, 3).detection_events
        log_odds = (graph.log_odds + rng.normal(0, 3, (n, graph.n_edges))).astype(np.float32)
        assert (log_odds > 0).any()
        answers = make_soft_backend(prob).decode_soft(detection_events, log_odds)
        events = unpack(detection_events, prob.n_detectors)
        inside = np.isin(np.arange(prob.n_detectors), graph.in_sector)
        for shot in range(n):
            matching = pymatching.Matching()
            for edge, (first, second) in enumerate(graph.endpoints):
                matching.add_edge(
                    int(first),
                    int(second) if second >= 0 else prob.n_detectors,
                    fault_ids={0} if graph.observables[edge, 0] else set(),
                    weight=-float(log_odds[shot, edge]),
                    merge_strategy="smallest-weight",
                )
            matching.set_boundary_nodes({prob.n_detectors})
            matching.ensure_num_fault_ids(1)
            assert answers[shot, 0] == matching.decode(np.append(events[shot] * inside, 0))[0]

    def test_certain_edges_are_applied(self) -> None:
        """An edge with certain prior is applied, independently of the rest of the syndrome."""
        prob = problem(3)
        graph = prob.graph
        edge = int(np.nonzero(graph.observables[:, 0])[0][0])
        ends = [int(d) for d in graph.endpoints[edge] if d >= 0]
        events = np.zeros((1, prob.n_detectors), np.uint8)
        events[0, ends] = 1
        log_odds = np.full((1, graph.n_edges), -9.0, np.float32)
        log_odds[0, edge] = 9.0
        assert make_soft_backend(prob).decode_soft(pack(events), log_odds)[0, 0]

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_non_finite_values_are_refused(self, bad: float) -> None:
        prob = problem(3)
        log_odds = np.tile(prob.graph.log_odds.astype(np.float32), (2, 1))
        log_odds[1, 0] = bad
        with pytest.raises(ValueError, match="not finite"):
            make_soft_backend(prob).decode_soft(np.zeros((2, 3), np.uint8), log_odds)

    def test_wrong_shapes_are_refused_naming_both(self) -> None:
        prob = problem(3)
        with pytest.raises(ValueError, match=r"\(2, 4\), expected \(2, 55\)"):
            make_soft_backend(prob).decode_soft(np.zeros((2, 3), np.uint8), np.zeros((2, 4), np.float32))


class TestHardFlip:
    def test_no_flips_change_nothing(self) -> None:
        prob = problem(3)
        detection_events = sample(prob, 500, 1).detection_events
        quiet = np.full((500, prob.n_mechanisms), -1.0, np.float32)
        backend = make_soft_backend(prob, "hard_flip")
        assert np.array_equal(backend.decode_soft(detection_events, quiet), backend.decode(detection_events))

    def test_flips_of_the_true_mechanisms_are_always_correct(self) -> None:
        """Flipping the true mechanisms leaves an empty syndrome, and the frame is the prediction."""
        prob = problem(3)
        drawn = LabelledSampler(prob, 4, "hard_flip").draw(500)
        assert drawn.edges.shape == (500, prob.n_mechanisms)
        log_odds = np.where(drawn.edges, 1.0, -1.0).astype(np.float32)
        answers = make_soft_backend(prob, "hard_flip").decode_soft(pack(drawn.detections), log_odds)
        assert np.array_equal(answers, drawn.observables)

    def test_logical_frame_is_tracked(self) -> None:
        """A flip of one mechanism that crosses the observable, with an empty syndrome, is decoded back."""
        prob = problem(3)
        crossing = np.nonzero(prob.L.toarray()[0])[0]
        log_odds = np.full((len(crossing), prob.n_mechanisms), -1.0, np.float32)
        log_odds[np.arange(len(crossing)), crossing] = 1.0
        answers = make_soft_backend(prob, "hard_flip").decode_soft(np.zeros((len(crossing), 3), np.uint8), log_odds)
        assert not answers.any()

    def test_wrong_shapes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="expected"):
            make_soft_backend(problem(3), "hard_flip").decode_soft(
                np.zeros((2, 3), np.uint8), np.zeros((2, 4), np.float32)
            )
