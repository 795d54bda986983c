"""Pins: parsed before a run exists, and applied to every proposal."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.pins import apply_pins, family_pins, format_pins, validate_pins
from autoqec.errors import ContractError

GNN = {"type": "gnn", "gnn": {"layers": 5}, "head": "mlp_small", "training": {"batch_size": 64}}
APART = {"type": "mlp", "mlp": {}, "training": {"loop": "async", "replay": {"ratio": 2.0}}}
REWARD = {"type": "mlp", "mlp": {}, "output_mode": "hard_flip", "training": {"policy_gradient": {}}}


@pytest.mark.parametrize("loop", ["minibatch", "minibatch_eval", "sync", "sync_eval", "async", "async_eval"])
@pytest.mark.parametrize("config", [GNN, APART, REWARD], ids=["plain", "apart", "reward"])
def test_pinned_loop_adds_its_block_and_removes_the_others(loop: str, config: dict[str, Any]) -> None:
    held = parse_dsl(apply_pins(config, validate_pins({"training.loop": loop})))
    assert held.training.loop == loop
    assert (held.training.sync is not None) == loop.startswith("sync")
    assert (held.training.replay is not None) == loop.startswith("async")
    if config is APART and held.training.replay is not None:
        assert held.training.replay.ratio == 2.0, "what else was proposed of the loop stays"
    assert held.block == parse_dsl(config).block


def test_other_keys_are_unchanged_and_pins_are_idempotent() -> None:
    pins = validate_pins({"training.batch_size": "128", "training.loop": "sync", "training.sync.ranks": 3})
    assert pins["training.batch_size"] == 128, "the type of the option"
    held = apply_pins(GNN, pins)
    assert (held["gnn"]["layers"], held["head"]) == (5, "mlp_small")
    assert (held["training"]["batch_size"], held["training"]["sync"]["ranks"]) == (128, 3)
    assert apply_pins(held, pins) == held and "loop" not in GNN["training"], "the proposal itself is left alone"
    assert apply_pins(GNN, {}) is GNN
    assert format_pins(pins) == "training.batch_size=128, training.loop=sync, training.sync.ranks=3"


def test_pinned_type_removes_the_block_of_another_type() -> None:
    held = apply_pins(GNN, validate_pins({"type": "neural_bp", "neural_bp.iterations": 7}))
    assert held["neural_bp"]["iterations"] == 7 and "gnn" not in held and held["head"] == "linear"
    assert held["training"]["batch_size"] == 64
    assert "policy_gradient" not in apply_pins(REWARD, validate_pins({"output_mode": "soft_priors"}))["training"]


def test_pins_that_conflict_with_a_proposal_are_reported() -> None:
    bp = PredecoderDSL.model_validate({"type": "neural_bp", "neural_bp": {}}).config()
    with pytest.raises(ContractError, match="has no hidden features for a head"):
        apply_pins(bp, validate_pins({"head": "mlp_small"}))


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"predecoder.type": "mlp"}, "unknown key `predecoder.type`.* hint: perhaps type"),
        ({"trainig.loop": "async"}, "perhaps training.loop"),
        ({"training": 1}, "unknown key `training`"),
        ({"hidden": 8}, "perhaps mlp.hidden, gnn.hidden"),
        ({"training.loop": "Mini Batch"}, "field `training.loop`"),
        ({"training.batch_size": 4}, "training.batch_size.*greater than or equal to 8"),
        ({"training.batch_size": {"size": 4}}, "training.batch_size.*valid integer"),
        ({"training.loop": "async", "training.replay.ratio": 0}, "training.replay.ratio.*greater than 0"),
        ({"training.loop": "async", "training.batch_size": 40_000}, "larger than the replay buffer"),
        ({"training.sync.ranks": 2}, "the block `sync` belongs to the loops sync and sync_eval"),
        ({"training.loop": "sync", "training.replay.ratio": 2}, "the loop is sync"),
        ({"gnn.layers": 3}, "belongs to type gnn.* hint: pin type=gnn too"),
        ({"training.policy_gradient.flip_cost": 0.1}, "set `output_mode: hard_flip`"),
        ({"training.init": "parent"}, "starts from the baseline has no parent"),
        ({"type": "transformer"}, "field `type`"),
    ],
)
def test_impossible_pin_is_one_error(pins: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message) as error:
        validate_pins(pins)
    assert "\n" not in str(error.value)


def test_several_circuits_pin_the_type_whose_weights_fit_all() -> None:
    assert family_pins({}, 1) == {} and family_pins({"type": "mlp"}, 1) == {"type": "mlp"}
    assert family_pins({"gate": 4.0}, 2) == {"type": "local", "gate": 4.0}
    with pytest.raises(ContractError, match="3 circuits, and weights of type `gnn` belong to one circuit") as error:
        family_pins({"type": "gnn"}, 3)
    assert "type=local" in str(error.value.hint)
