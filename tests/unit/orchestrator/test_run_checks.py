"""Checks before a run starts."""

from __future__ import annotations

import pytest

from autoqec.locate import BUILTIN
from autoqec.orchestrator.run_checks import NetworkOptions, find_network_options
from autoqec.store.files import load_env


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smoke", NetworkOptions("other_sector", gate_available=True)),
        ("bb72_circuit", NetworkOptions("other_sector", gate_available=False)),
    ],
)
def test_network_options_follow_from_the_env(name: str, expected: NetworkOptions) -> None:
    assert find_network_options(load_env(BUILTIN / f"{name}.yaml")[0]) == expected
