"""Configs are equivalent exactly if they compile to the same function."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.decoders.equivalence import find_equivalent, fingerprint
from tests.unit.decoders.test_decoders import SETTINGS, with_setting


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
def test_configs_of_one_function_are_equivalent(name: str) -> None:
    first, second = SAME[name]
    assert (
        first.sha256() != second.sha256()
        and find_equivalent(first, [second]) == second
        and find_equivalent(second, [first]) == first
    )


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_configs_of_different_functions_are_not_equivalent(name: str) -> None:
    first, second = DIFFERENT[name]
    assert find_equivalent(first, [second]) is None and find_equivalent(first, [second, first]) == first


@pytest.mark.parametrize(("base", "path", "values"), SETTINGS, ids=[f"{b['type']}-{p}" for b, p, _ in SETTINGS])
def test_options_of_a_setting_are_not_equivalent(base: dict[str, Any], path: str, values: list[Any]) -> None:
    prints = [fingerprint(with_setting(base, path, value)) for value in values]
    assert None not in prints and len(set(prints)) == len(values)


def test_fine_tuning_settings_are_ignored_without_fine_tuning() -> None:
    first, second = DIFFERENT["another gap"]
    assert find_equivalent(first, [second], finetunes=False) == second


def test_networks_without_a_fingerprint_are_compared_by_config() -> None:
    huge = [config("mlp", {"hidden": 4096, "depth": depth}) for depth in (7, 8)]
    custom = [config("gnn", {"message_fn": "custom", "edge_features": flag}) for flag in (True, False)]
    for first, second in (huge, custom):
        assert (
            fingerprint(first) is None
            and find_equivalent(first, [second]) is None
            and find_equivalent(first, [first]) == first
        )
