"""Nested configs as flat mappings of dotted keys, such as `training.loop`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested config as one mapping from dotted keys to values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of `flatten`."""
    config: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = config
        for part in parents:
            node = node.setdefault(part, {})
        node[leaf] = value
    return config


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key. KeyError if a part is missing."""
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys whose values differ; a missing key equals None."""
    first_flat, second_flat = flatten(first), flatten(second)
    return [key for key in {**first_flat, **second_flat} if first_flat.get(key) != second_flat.get(key)]
