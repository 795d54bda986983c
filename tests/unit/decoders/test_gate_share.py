"""A gate given as a share of shots: calibrated once, kept in nats by the checkpoint, and used like a gate in nats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import MAX_GATE, GateShare, PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.pins import apply_pins, validate_pins
from autoqec.decoders import checkpoint
from autoqec.decoders.base import Predecoder
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.equivalence import find_equivalent
from autoqec.decoders.gating import CALIBRATION_SHOTS, calibrate_gate
from autoqec.errors import ContractError, UsageError
from autoqec.ideators.search_state import SearchState
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from tests.support.envs import problem, repetition, surface
from tests.support.role_views import ideator_view

CONFIG: dict[str, Any] = {"type": "mlp", "mlp": {"hidden": 8, "inputs": "all"}}
SHARE = 0.1


def perturbed(dsl: PredecoderDSL, prob: Problem) -> Predecoder:
    model = compile_predecoder(dsl, prob, seed=1)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    return model


def saved(path: Path, config: dict[str, Any], nats: float | None) -> Path:
    dsl = parse_dsl(config)
    model = perturbed(dsl, problem(3))
    model.gate = nats
    checkpoint.save(path, model, dsl)
    return path


@pytest.mark.parametrize("share", [0.02, SHARE, 0.4])
def test_calibrated_gate_sends_the_share_of_fresh_shots(share: float) -> None:
    prob = problem(3)
    nats = calibrate_gate(prob, share)
    model = compile_predecoder(parse_dsl(CONFIG | {"gate": {"share": share}}), prob, seed=0)
    assert model.gate is None and calibrate_gate(prob, share) == nats
    gaps = np.abs(gate_gaps(prob))
    assert abs((gaps < nats).mean() - share) < 6 * np.sqrt(share / CALIBRATION_SHOTS) + ties(gaps, nats)


def gate_gaps(prob: Problem) -> np.ndarray:
    from autoqec.qec.logical_classes import LogicalClassMatcher

    return LogicalClassMatcher(prob).complementary_gap(sample(prob, CALIBRATION_SHOTS, 9).detection_events)


def ties(gaps: np.ndarray, nats: float) -> float:
    """Return the share of shots whose gap lies at the gate: small codes have few values."""
    return float((np.abs(gaps - nats) < 1e-3).mean())


def test_checkpoint_decodes_like_one_with_a_gate_in_nats(tmp_path: Path) -> None:
    nats = calibrate_gate(problem(3), SHARE)
    path = saved(tmp_path / "share.pt", CONFIG | {"gate": {"share": SHARE}}, nats)
    same = saved(tmp_path / "nats.pt", CONFIG | {"gate": nats}, nats)
    ungated = saved(tmp_path / "ungated.pt", CONFIG, None)
    events = sample(problem(3), 4000, 5).detection_events
    by_share, by_nats, without = (
        CheckpointDecoder.of(surface(3), each).decode(events) for each in (path, same, ungated)
    )
    assert np.array_equal(by_share, by_nats) and not np.array_equal(by_share, without)
    dsl = parse_dsl(CONFIG | {"gate": {"share": SHARE}})
    assert checkpoint.resolved_gate(path, dsl) == nats and "gate_nats" in checkpoint.read(path)
    assert "gate_nats" not in checkpoint.read(same) and checkpoint.resolved_gate(ungated, parse_dsl(CONFIG)) is None


@pytest.mark.parametrize("nats", [None, "4", True, float("nan"), 0.0, -1.0, MAX_GATE + 1, torch.tensor(4.0)])
def test_checkpoint_without_usable_nats_is_rejected(tmp_path: Path, nats: Any) -> None:
    path = saved(tmp_path / "checkpoint.pt", CONFIG | {"gate": {"share": SHARE}}, 4.0)
    payload = checkpoint.read(path) | {"gate_nats": nats}
    if nats is None:
        del payload["gate_nats"]
    torch.save(payload, path)
    with pytest.raises(ContractError, match="gate_nats"):
        CheckpointDecoder.of(surface(3), path)


@pytest.mark.parametrize("bad", [{"share": 0}, {"share": 1}, {"share": 0.1, "nats": 4}, {}, {"share": float("nan")}])
def test_invalid_shares_are_rejected(bad: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="gate"):
        parse_dsl(CONFIG | {"gate": bad})


def test_share_needs_a_complementary_gap() -> None:
    env = EnvSpec.model_validate({**repetition().dump(), "baselines": ["bposd0"], "backend": "bposd"})
    with pytest.raises(UsageError, match="remove `gate`"):
        calibrate_gate(Problem.from_env(env), SHARE)


def test_share_is_part_of_the_config() -> None:
    tenth, fifth, nats = (parse_dsl(CONFIG | {"gate": gate}) for gate in ({"share": 0.1}, {"share": 0.2}, 4.0))
    assert tenth.gate == GateShare(share=0.1) and parse_dsl(tenth.config()) == tenth
    assert len({each.sha256() for each in (tenth, fifth, nats)}) == 3
    assert find_equivalent(tenth, [fifth, nats]) is None and find_equivalent(tenth, [fifth, tenth]) == tenth


def test_share_can_be_pinned_and_is_then_not_searched() -> None:
    pins = validate_pins({"gate.share": 0.1})
    assert apply_pins(CONFIG | {"gate": 4.0}, pins)["gate"] == {"share": 0.1}
    assert apply_pins(CONFIG | {"gate": {"share": 0.2}}, validate_pins({"gate": 4.0}))["gate"] == 4.0
    state = SearchState.read(ideator_view(baseline_config=parse_dsl(CONFIG).config(), pins=pins))
    assert "gate" not in {dimension.key for dimension in state.active_dimensions("mlp")}
