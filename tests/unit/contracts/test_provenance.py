"""The round pointer: every field is required, parents have one form."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.provenance import Pointer
from autoqec.errors import ContractError

POINTER: dict[str, Any] = {
    "run_id": "20260101-000000",
    "round_idx": 1,
    "round_attempt_id": "a",
    "branch": "exp/20260101-000000/01-x",
    "commit_sha": "0" * 40,
    "fork_from": "baseline",
    "fork_from_canonical": "baseline",
    "fork_from_ordered": None,
    "provenance": {
        "env_yaml_sha256": "0" * 64,
        "dsl_config_sha256": "1" * 64,
        "requirements_fingerprint": "0123abcd",
        "repo_root_resolved": "/workspace",
    },
    "metrics_summary": {"delta_vs_parent": None, "flops_per_syndrome": 1, "n_params": 1, "status": "ok"},
    "artifact_paths": {"checkpoint": None, "metrics": "/workspace/m", "train_log": None},
}


def fields() -> list[tuple[str, ...]]:
    nested = [(key, inner) for key, value in POINTER.items() if isinstance(value, dict) for inner in value]
    return [(key,) for key in POINTER] + nested


@pytest.mark.parametrize("path", fields(), ids=".".join)
def test_every_field_is_required(path: tuple[str, ...]) -> None:
    Pointer.read(POINTER)
    broken = {key: dict(value) if isinstance(value, dict) else value for key, value in POINTER.items()}
    target = broken[path[0]] if len(path) == 2 else broken
    del target[path[-1]]
    with pytest.raises(ContractError, match=path[-1]):
        Pointer.read(broken, location="pointer")


def test_pointer_with_a_reconcile_id_is_refused() -> None:
    assert Pointer.read({**POINTER, "key_of_a_later_version": 1}).round_attempt_id == "a"
    with pytest.raises(ContractError, match="reconcile_id"):
        Pointer.read({**POINTER, "reconcile_id": "r"}, location="pointer")


def test_fork_parent_has_one_form() -> None:
    parents = {"fork_from": ["b", "a"], "fork_from_canonical": "a|b", "fork_from_ordered": ["b", "a"]}
    Pointer.read({**POINTER, **parents})
    with pytest.raises(ContractError, match="fork_from_canonical"):
        Pointer.read({**POINTER, **parents, "fork_from_canonical": "b|a"})
    with pytest.raises(ContractError, match="fork_from_ordered"):
        Pointer.read({**POINTER, "fork_from_ordered": ["baseline"]})
