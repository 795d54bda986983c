"""Gated decoding: plain matching decodes confident shots, the predecoder decodes the others, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.decoders import checkpoint
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.equivalence import find_equivalent
from autoqec.decoders.gating import Gate, make_decoder
from autoqec.errors import ContractError, UsageError
from autoqec.qec.backends import make_soft_backend
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, sample, unpack
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.evaluate import decode_both
from autoqec.sinter import CompiledPredecoder
from autoqec.verification.candidate_evaluation import CandidateEvaluation, ChunkAnswer
from autoqec.verification.shot_stream import ShotStream
from tests.support.envs import problem, repetition, surface
from tests.support.verification import SECRET

GATE = 2.5


def gated_checkpoint(directory: Path, env: EnvSpec, gate: float | None = GATE, mode: str = "soft_priors") -> Path:
    """A checkpoint with perturbed weights, whose predictions differ from those of plain matching."""
    config: dict[str, Any] = {"type": "mlp", "output_mode": mode, "mlp": {"hidden": 8, "inputs": "all"}}
    dsl = parse_dsl(config if gate is None else config | {"gate": gate})
    model = compile_predecoder(dsl, Problem.from_env(env), seed=1)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    checkpoint.save(directory / "checkpoint.pt", model, dsl)
    return directory / "checkpoint.pt"


def reference(prob: Problem, path: Path, events: np.ndarray, gate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions by the definition: both classes by weighted matching under the priors.

    Also return the gaps.
    """
    model, dsl = checkpoint.load(path, prob)
    backend = make_soft_backend(prob, dsl.output_mode)
    weights = -prob.matching_graph.log_odds
    detections = unpack(events, prob.n_detectors)
    log_odds = np.broadcast_to(-weights, (len(events), len(weights)))
    unflipped, flipped = LogicalClassMatcher(prob).match_both_classes(detections, log_odds)
    gap = flipped @ weights - unflipped @ weights
    with torch.no_grad():
        net = backend.decode_soft(events, model(torch.from_numpy(detections).float()).numpy())
    return np.where(np.abs(gap)[:, None] < gate, net, backend.decode(events)), gap


@pytest.mark.parametrize(
    ("distance", "p", "shots"),
    [(3, 0.01, 5_000), (5, 0.008, 5_000), pytest.param(5, 0.005, 100_000, marks=pytest.mark.long)],
)
def test_checkpoint_decoder_equals_the_reference_path(tmp_path: Path, distance: int, p: float, shots: int) -> None:
    prob = problem(distance, p)
    path = gated_checkpoint(tmp_path, prob.env)
    events = sample(prob, shots, 11).detection_events
    expected, gap = reference(prob, path, events, GATE)
    assert np.abs(np.abs(gap) - GATE).min() > 1e-4, "no gap lies within rounding of the gate"
    predictions = CheckpointDecoder.of(prob.env, path).decode(events)
    assert np.array_equal(predictions, expected)
    ungated = CheckpointDecoder.of(prob.env, gated_checkpoint(tmp_path, prob.env, None)).decode(events)
    plain = make_soft_backend(prob).decode(events)
    assert not np.array_equal(predictions, ungated) and not np.array_equal(predictions, plain)


@pytest.mark.parametrize("mode", ["soft_priors", "hard_flip"])
def test_sinter_verifier_and_validation_decode_alike(tmp_path: Path, mode: str) -> None:
    env = surface(3)
    prob = Problem.from_env(env)
    path = gated_checkpoint(tmp_path, env, mode=mode)
    shots = sample(prob, 3000, 5)
    events = shots.detection_events
    expected = CheckpointDecoder.of(env, path).decode(events)
    through_sinter = CompiledPredecoder.of(env, path, prob.dem).decode_shots_bit_packed(
        bit_packed_detection_event_data=events
    )
    assert np.array_equal(through_sinter, pack(expected))
    model, dsl = checkpoint.load(path, prob)
    with torch.no_grad():
        log_odds = model(torch.from_numpy(unpack(events, prob.n_detectors)).float()).numpy()
    stream = ShotStream(SECRET, "a" * 64, (0, 9))
    evaluation = CandidateEvaluation(prob, stream, None, dsl.output_mode, dsl.gate)  # type: ignore[arg-type]
    selection = evaluation.decoder.select(events)
    answer = ChunkAnswer(shots, selection, log_odds[selection.mask])
    errors, predictions = evaluation.score_answer(evaluation.decoder, answer)
    assert predictions is not None and np.array_equal(predictions, expected)
    _, candidate = decode_both(prob, PredecoderAgent(model, 1000), shots)
    assert np.array_equal(candidate, errors) and errors.any()


def test_confident_shots_do_not_reach_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(3)
    decoder = CheckpointDecoder.of(prob.env, gated_checkpoint(tmp_path, prob.env))
    events = sample(prob, 2000, 1).detection_events
    sizes = []
    log_odds = decoder.log_odds
    monkeypatch.setattr(decoder, "log_odds", lambda shots: sizes.append(len(shots)) or log_odds(shots))
    decoder.decode(events)
    assert decoder.decoder.gate is not None
    assert sizes == [decoder.decoder.gate.ambiguous_shots] and 0 < decoder.decoder.gate.ambiguous_share < 0.5


def test_gate_above_every_gap_equals_no_gate(tmp_path: Path) -> None:
    prob = problem(3)
    events = sample(prob, 2000, 1).detection_events
    paths = (gated_checkpoint(tmp_path, prob.env, gate) for gate in (30.0, None))
    wide, ungated = (CheckpointDecoder.of(prob.env, path).decode(events) for path in paths)
    assert np.array_equal(wide, ungated)


def test_gate_counts_ambiguous_shots() -> None:
    prob = problem(3)
    gate = Gate(prob, GATE)
    assert gate.ambiguous_share == 0
    _, ambiguous = gate.split(sample(prob, 1000, 1).detection_events)
    _, more = gate.split(sample(prob, 500, 2).detection_events)
    assert gate.shots == 1500 and gate.ambiguous_share == pytest.approx((ambiguous.sum() + more.sum()) / 1500)


def test_single_shots_are_split_and_counted_like_batches(tmp_path: Path) -> None:
    """Also with a threshold that float32 rounds: the gap of a shot is as near to it as possible."""
    prob = problem(3)
    events = sample(prob, 400, 1).detection_events
    gaps = Gate(prob, 30.0).gap(events)
    for threshold in (GATE, float(np.abs(gaps[5])), float(np.abs(gaps[5])) + 1e-9, float(np.abs(gaps[5])) - 1e-9):
        batch, single = Gate(prob, threshold), Gate(prob, threshold)
        predictions, ambiguous = batch.split(events)
        found = [single.split_one(events[i : i + 1]) for i in range(400)]
        assert found == list(zip(predictions[:, 0].tolist(), ambiguous.tolist(), strict=True))
        assert (single.shots, single.ambiguous_shots) == (batch.shots, batch.ambiguous_shots)
    decoder = CheckpointDecoder.of(prob.env, gated_checkpoint(tmp_path, prob.env))
    ones = [decoder.decode(events[i : i + 1]) for i in range(400)]
    assert np.array_equal(np.concatenate(ones), decoder.decode(events))
    assert all(one.dtype == bool and one.shape == (1, 1) for one in ones)


def test_other_error_rate_moves_the_gap_with_the_priors(tmp_path: Path) -> None:
    env = surface(3)
    path = gated_checkpoint(tmp_path, env)
    noisy = problem(3, 0.02)
    decoder = CheckpointDecoder.of(env, path, noisy.dem)
    events = sample(noisy, 1000, 1).detection_events
    decoder.decode(events)
    gaps = LogicalClassMatcher(noisy).complementary_gap(events)
    assert decoder.decoder.gate is not None and decoder.decoder.gate.ambiguous_shots == (np.abs(gaps) < GATE).sum()


def test_inner_decoder_without_gap_is_rejected() -> None:
    env = EnvSpec.model_validate({**repetition().dump(), "baselines": ["bposd0"], "backend": "bposd"})
    with pytest.raises(UsageError, match="backend `bposd` does not have.*remove `gate`"):
        make_decoder(Problem.from_env(env), "soft_priors", 3.0)


def test_no_gate_is_the_inner_decoder() -> None:
    prob = problem(3)
    decoder = make_decoder(prob, "soft_priors", None)
    events = sample(prob, 200, 1).detection_events
    selection = decoder.select(events)
    assert decoder.gate is None and np.array_equal(selection.detection_events, events)
    log_odds = np.random.default_rng(0).normal(-4, 1, (200, prob.graph.n_edges)).astype(np.float32)
    assert np.array_equal(decoder.complete(selection, log_odds), decoder.inner.decode_soft(events, log_odds))


def test_configs_that_differ_in_the_gate_are_not_equivalent() -> None:
    gated, other, ungated = (parse_dsl({"type": "mlp", "mlp": {}} | more) for more in ({"gate": 3}, {"gate": 4}, {}))
    assert find_equivalent(gated, [other, ungated]) is None and find_equivalent(gated, [other, gated]) == gated


def test_config_without_a_gate_keeps_its_hash() -> None:
    """Configs and checkpoints of version 1 have no such key."""
    config = parse_dsl({"type": "mlp", "mlp": {}}).config()
    assert "gate" not in config and parse_dsl(config).sha256() == parse_dsl({**config, "gate": None}).sha256()


@pytest.mark.parametrize("bad", [0, -1, 31, float("nan"), "wide"])
def test_gate_outside_its_range_is_rejected(bad: Any) -> None:
    with pytest.raises(ContractError, match="gate"):
        parse_dsl({"type": "mlp", "mlp": {}, "gate": bad})
