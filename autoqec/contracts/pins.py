"""Pins: hyperparameters that a run holds fixed in every proposal, as dotted keys of the DSL."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from autoqec.contracts.base import Contract
from autoqec.contracts.dsl import FAMILIES, LOOP_BLOCKS, PredecoderDSL, parse_dsl, value_at
from autoqec.errors import ContractError

Pins = Mapping[str, Any]  # `training.loop` -> `async`


def apply_pins(config: dict[str, Any], pins: Pins) -> dict[str, Any]:
    """Return the config with the pins set and every default written; without pins, the config unchanged.

    Blocks follow the key that needs them: a pinned family or loop adds its own block with defaults and removes the
    others.

    Raises:
        ContractError: The rest of the config does not fit the pins.
    """
    if not pins:
        return config
    whole = copy.deepcopy(config)
    family = pins.get("type", whole.get("type"))
    if family != whole.get("type"):
        whole = {key: value for key, value in whole.items() if key not in (*FAMILIES, "head")}
        whole |= {"type": family, family: {}}
    if pins.get("output_mode") == "soft_priors":
        _ensure_block(whole, "training").pop("policy_gradient", None)
    if "training.loop" in pins:
        training = _ensure_block(whole, "training")
        for block, head in LOOP_BLOCKS.items():
            kept = training.pop(block, None)
            if str(pins["training.loop"]).startswith(head):
                training[block] = kept or {}
    for key, value in pins.items():
        *parents, leaf = key.split(".")
        parent_block = whole
        for part in parents:
            parent_block = _ensure_block(parent_block, part)
        parent_block[leaf] = value
    return parse_dsl(whole, location="proposal, under the run's pins").config()


def validate_pins(pins: Pins) -> dict[str, Any]:
    """Return the pins with values of their keys' types.

    Raises:
        ContractError: A key is unknown, a value does not fit, or some proposals would not have the key.
    """
    known = list(_hyperparameter_keys(PredecoderDSL))
    for key in pins:
        block = key.partition(".")[0]
        if key not in known:
            same_leaf_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
            near = same_leaf_name or get_close_matches(key, known, n=3, cutoff=0.5) or known[:2]
            raise ContractError(f"unknown key `{key}`", location="pin", hint=f"perhaps {', '.join(near)}")
        if block in FAMILIES and pins.get("type") != block:
            message = f"`{key}` belongs to type {block}, and other types may be proposed"
            raise ContractError(message, location="pin", hint=f"pin type={block} too")
    if pins.get("training.init") == "parent":
        message = "a round that starts from the baseline has no parent whose weights it could go on from"
        raise ContractError(message, location="pin training.init", hint="leave it to the ideator")
    try:
        whole = apply_pins({"type": "mlp", "mlp": {}}, pins)
    except ContractError as error:
        raise ContractError(error.message, location="pin") from error
    values = parse_dsl(whole).dump()
    return {key: value_at(values, key) for key in pins}


def family_pins(pins: Pins, n_circuits: int) -> dict[str, Any]:
    """Return the pins, with type `local` for an env with several circuits: its weights fit all of them.

    Raises:
        ContractError: The pins name another type.
    """
    if n_circuits < 2:
        return dict(pins)
    family = pins.get("type", "local")
    if family != "local":
        message = f"the env has {n_circuits} circuits, and weights of type `{family}` belong to one circuit"
        raise ContractError(message, location="pin type", hint="leave it out, or pin type=local")
    return {"type": "local", **pins}


def format_pins(pins: Pins) -> str:
    """Return the pins as text, such as `training.loop=async, type=mlp`; empty without pins."""
    return ", ".join(f"{key}={value}" for key, value in pins.items())


def _hyperparameter_keys(kind: type[Contract], prefix: str = "") -> Iterator[str]:
    for name, field in kind.model_fields.items():
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_contract(kind)]
        if inner:
            yield from _hyperparameter_keys(inner[0], f"{prefix}{name}.")
        if not inner or name == "gate":  # which may also be a number
            yield prefix + name


def _is_contract(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Contract)


def _ensure_block(parent_block: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the dict at `name`, created if it is missing."""
    if not isinstance(parent_block.get(name), dict):
        parent_block[name] = {}
    block: dict[str, Any] = parent_block[name]
    return block
