"""Two configs that compile to one function are known as such, and no two others are."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.decoders.equivalence import find_equivalent, fingerprint
from tests.unit.decoders.test_decoders import KNOBS, with_knob


def config(family: str, block: dict[str, Any], training: dict[str, Any] | None = None, **more: Any) -> PredecoderDSL:
    return parse_dsl({"type": family, family: block, "training": training or {}, **more})


SAME = {
    "a residual path past no layer": (
        config("conv", {"layers": 1, "residual": True}),
        config("conv", {"layers": 1, "residual": False}),
    ),
    "one iteration has one damping": (
        config("neural_bp", {"iterations": 1, "damping": "learnable_scalar"}),
        config("neural_bp", {"iterations": 1, "damping": "learnable_per_iter"}),
    ),
    "a loop that looks up while it trains": (
        config("mlp", {}, {"loop": "minibatch"}),
        config("mlp", {}, {"loop": "minibatch_eval"}),
    ),
    "fine-tuning that is left out": (
        config("mlp", {}, {"finetune_share": 0.0, "finetune_gap": 3.0}),
        config("mlp", {}, {"finetune_share": 0.0, "finetune_learning_rate": 1e-3}),
    ),
}
DIFFERENT = {
    "another rate": (config("mlp", {}, {"learning_rate": 1e-3}), config("mlp", {}, {"learning_rate": 2e-3})),
    "another gap": (config("mlp", {}, {"finetune_gap": 3.0}), config("mlp", {}, {"finetune_gap": 4.0})),
    "weights of the parent": (config("mlp", {}, {"init": "parent"}), config("mlp", {})),
    "damping that is learnt": (
        config("neural_bp", {"iterations": 1, "damping": "fixed"}),
        config("neural_bp", {"iterations": 1, "damping": "learnable_scalar"}),
    ),
    "flips": (config("mlp", {}), config("mlp", {}, output_mode="hard_flip")),
}


@pytest.mark.parametrize("name", sorted(SAME))
def test_two_names_for_one_function(name: str) -> None:
    one, other = SAME[name]
    assert (
        one.sha256() != other.sha256()
        and find_equivalent(one, [other]) == other
        and find_equivalent(other, [one]) == one
    )


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_two_functions(name: str) -> None:
    one, other = DIFFERENT[name]
    assert find_equivalent(one, [other]) is None and find_equivalent(one, [other, one]) == one


@pytest.mark.parametrize(("base", "path", "values"), KNOBS, ids=[f"{b['type']}-{p}" for b, p, _ in KNOBS])
def test_no_two_options_of_a_knob_are_taken_for_one(base: dict[str, Any], path: str, values: list[Any]) -> None:
    prints = [fingerprint(with_knob(base, path, value)) for value in values]
    assert None not in prints and len(set(prints)) == len(values)


def test_without_fine_tuning_its_settings_are_no_difference() -> None:
    one, other = DIFFERENT["another gap"]
    assert find_equivalent(one, [other], finetunes=False) == other


def test_what_cannot_be_asked_is_told_apart_by_its_config_alone() -> None:
    huge = [config("mlp", {"hidden": 4096, "depth": depth}) for depth in (7, 8)]
    own = [config("gnn", {"message_fn": "custom", "edge_features": flag}) for flag in (True, False)]
    for one, other in (huge, own):
        assert fingerprint(one) is None and find_equivalent(one, [other]) is None and find_equivalent(one, [one]) == one
