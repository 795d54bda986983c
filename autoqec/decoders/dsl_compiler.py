"""Compilation of a predecoder config to a torch module."""

from __future__ import annotations

import torch

from autoqec.contracts.dsl import GateShare, PredecoderDSL
from autoqec.decoders.base import Predecoder, ProblemView
from autoqec.decoders.overlay import architecture_module
from autoqec.qec.problem import Problem


def compile_predecoder(dsl: PredecoderDSL, problem: Problem, *, seed: int) -> Predecoder:
    """Build the predecoder of `dsl` for `problem`, with weights drawn from `seed`.

    A gate that is a share of shots is None until it is calibrated or read from a checkpoint.
    torch's random state is preserved. Exceptions of the architecture's module propagate.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(dsl, ProblemView.of(problem, dsl.output_mode))


def compile_for_cost(dsl: PredecoderDSL, view: ProblemView) -> Predecoder:
    """Build the predecoder of `dsl` with any weights, to count its parameters and operations.

    To seed torch's generators takes longer than to build a small network.

    Args:
        dsl: The config.
        view: The problem for the output mode of `dsl`.
    """
    with torch.random.fork_rng(devices=[]):
        return _build(dsl, view)


def _build(dsl: PredecoderDSL, view: ProblemView) -> Predecoder:
    body = architecture_module(dsl.type).build(dsl.block.dump(), dsl.head, view)
    return Predecoder(body, view, dsl.output_mode, None if isinstance(dsl.gate, GateShare) else dsl.gate)
