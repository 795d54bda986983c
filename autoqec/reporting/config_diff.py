"""Differences between predecoder configs, by dotted keys."""

from __future__ import annotations

from typing import Any


def flatten_config(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested config as one mapping from dotted keys to values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten_config(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def differing_keys(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the dotted keys whose values differ; a missing key equals None."""
    first_flat, second_flat = flatten_config(first), flatten_config(second)
    return [key for key in {**first_flat, **second_flat} if first_flat.get(key) != second_flat.get(key)]
