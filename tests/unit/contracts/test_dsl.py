"""PredecoderDSL: one block, no unknown key, one hash."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.dsl import FAMILIES, parse_dsl
from autoqec.errors import ContractError


@pytest.mark.parametrize("family", FAMILIES)
def test_exactly_the_block_of_the_type_is_required(family: str) -> None:
    other = next(name for name in FAMILIES if name != family)
    assert parse_dsl({"type": family, family: {}}).block.dump()
    for config in ({"type": family}, {"type": family, other: {}}, {"type": family, family: {}, other: {}}):
        with pytest.raises(ContractError, match=f"`{family}`"):
            parse_dsl(config)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"type": "mlp", "mlp": {"hiden": 64}}, "mlp.hiden"),
        ({"type": "mlp", "mlp": {"hidden": 0}}, "mlp.hidden"),
        ({"type": "mlp", "mlp": {}, "training": {"learning_rate": float("nan")}}, "training.learning_rate"),
        ({"type": "mlp", "mlp": {}, "training": {"batch_size": "many"}}, "training.batch_size"),
        ({"type": "cnn", "mlp": {}}, "type"),
        ("prose", "value"),
        (None, "value"),
    ],
)
def test_first_unknown_key_is_named(config: object, field: str) -> None:
    with pytest.raises(ContractError) as caught:
        parse_dsl(config, location="predecoder.yaml")
    assert f"`{field}`" in str(caught.value) and "predecoder.yaml" in str(caught.value)


def test_hash_ignores_written_defaults_and_key_order() -> None:
    short = parse_dsl({"mlp": {}, "type": "mlp"})
    written = parse_dsl(short.config())
    assert short.sha256() == written.sha256()
    assert short.sha256() != parse_dsl({"type": "mlp", "mlp": {"hidden": 257}}).sha256()
    assert "gnn" not in short.config()


def test_ratio_of_fine_tuning_takes_no_more_shots_than_the_profile_has() -> None:
    with pytest.raises(ContractError, match="raise the ratio"):
        parse_dsl({"type": "local", "local": {}, "training": {"finetune_ratio": 3.0, "finetune_share": 2.0}})


@pytest.mark.parametrize("more", [{"output_mode": "hard_flip"}, {"training": {"finetune_share": 0.0}}])
def test_inputs_of_fine_tuning_need_fine_tuning(more: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="needs fine-tuning"):
        parse_dsl({"type": "local", "local": {"inputs": "all_in_finetuning"}, **more})
