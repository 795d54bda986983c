"""Families of circuits: networks that share parameters, and what cannot share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.decoders import checkpoint, family
from autoqec.decoders.base import Predecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError, UsageError
from autoqec.qec.problem import Problem
from tests.support.envs import surface_family

LOCAL = {"type": "local", "local": {"hidden": 4, "space": 1, "time": 1}}


def build(env: EnvSpec, **more: Any) -> tuple[PredecoderDSL, Predecoder, list[Predecoder]]:
    dsl = parse_dsl({**LOCAL, **more} if "type" not in more else more)
    model = compile_predecoder(dsl, Problem.from_env(env), seed=1)
    problems = [Problem.from_env(each) for each in env.other_members]
    return dsl, model, family.compile_members(dsl, model, env, problems)


def test_all_circuits_train_the_same_parameters() -> None:
    env = surface_family((3, 3), (5, 5), (5, 15))
    _, model, others = build(env)
    assert len(others) == 2 and [family.target_member(each).rounds for each in (env, *env.other_members)] == [3, 5, 15]
    for other in others:
        assert {id(each) for each in other.parameters()} == {id(each) for each in model.parameters()}
    next(iter(model.parameters())).data += 1.0
    assert torch.equal(next(iter(model.parameters())), next(iter(others[0].parameters())))


def test_networks_of_one_circuit_are_refused() -> None:
    with pytest.raises(ContractError, match="weights of type `mlp` belong to one circuit") as error:
        build(surface_family((3, 3), (5, 5)), type="mlp", mlp={})
    assert "local" in str(error.value.hint)


def test_replay_buffers_are_refused() -> None:
    with pytest.raises(ContractError, match="replay buffer"):
        build(surface_family((3, 3), (5, 5)), training={"loop": "async", "replay": {}})


def test_target_needs_every_class_of_edges() -> None:
    """At an even distance the boundary lacks two kinds of corners."""
    family.require_shared_weights(surface_family((5, 5), (4, 4)), "other_sector")
    with pytest.raises(UsageError, match="of the circuit d=5 r=5 p=0.01 has no counterpart") as error:
        family.require_shared_weights(surface_family((4, 4), (5, 5)), "other_sector")
    assert "target" in str(error.value.hint)


def test_measured_circuits_of_a_family_count_as_trained() -> None:
    env = surface_family((3, 3), (5, 5))
    assert [str(each) for each in family.trained_members(env)] == ["d=3 r=3 p=0.01", "d=5 r=5 p=0.01"]
    alone = family.member_env(env, family.Member(7, 2, 0.01))
    assert alone.other_members == () and Problem.from_env(alone).rounds == 2


def test_weights_load_for_a_circuit_of_their_family_alone(tmp_path: Path) -> None:
    env = surface_family((3, 3), (5, 5))
    dsl, model, _ = build(env)
    other = Problem.from_env(env.other_members[0])
    checkpoint.save(tmp_path / "local.pt", model, dsl)
    loaded = checkpoint.load_for_member(tmp_path / "local.pt", other)[0]
    assert loaded.circuit_sha256.tolist() == list(bytes.fromhex(other.circuit_sha256))
    dense = parse_dsl({"type": "mlp", "mlp": {"hidden": 4}})
    checkpoint.save(tmp_path / "mlp.pt", compile_predecoder(dense, Problem.from_env(env), seed=0), dense)
    with pytest.raises(ContractError, match="weights of type `mlp` belong to one circuit"):
        checkpoint.load_for_member(tmp_path / "mlp.pt", other)
    _, even, _ = build(surface_family((4, 4), (4, 8)))
    checkpoint.save(tmp_path / "even.pt", even, dsl)
    with pytest.raises(ContractError, match="absent in the checkpoint"):
        checkpoint.load_for_member(tmp_path / "even.pt", other)
