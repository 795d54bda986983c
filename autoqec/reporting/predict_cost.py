"""Predicts the parameters and FLOPs of a config by counting its compiled network."""

from __future__ import annotations

from typing import Any

from autoqec.contracts.dsl import PredecoderDSL


def predict_cost(env_yaml: str, dsl: PredecoderDSL) -> dict[str, int]:
    """Return {n_params, flops_per_syndrome} of a config on an env, with the modules of the installed package.

    Args:
        env_yaml: Text of the env file.
        dsl: The config.

    Raises:
        ContractError, ValueError: The config does not fit the env's code.
    """
    from autoqec.decoders.dsl_compiler import compile_predecoder
    from autoqec.decoders.flops import count

    problem = _problem(env_yaml)
    cost = count(compile_predecoder(dsl, problem, seed=0), problem.n_detectors)
    return {"n_params": cost.n_params, "flops_per_syndrome": cost.flops_per_syndrome}


def can_have_gate(env_yaml: str) -> bool:
    """Return whether a config for this env can have a gate."""
    from autoqec.decoders.gating import has_gap

    return has_gap(_problem(env_yaml))


def _problem(env_yaml: str) -> Any:
    from autoqec.qec.problem import Problem
    from autoqec.store.files import parse_env

    return Problem.from_env(parse_env(env_yaml, location="env"))


def env_problem(env_yaml: str) -> str | None:
    """Return why no decoding problem can be built from the env; None if it can."""
    from autoqec.errors import AutoqecError

    try:
        _problem(env_yaml)
    except (AutoqecError, ValueError, MemoryError) as error:
        return str(error)
    return None
