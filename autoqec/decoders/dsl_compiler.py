"""PredecoderDSL -> torch."""

from __future__ import annotations

import torch

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.decoders.base import Predecoder, ProblemView
from autoqec.decoders.overlay import architecture_module
from autoqec.qec.problem import Problem


def compile_predecoder(dsl: PredecoderDSL, problem: Problem, *, seed: int) -> Predecoder:
    """The predecoder of `dsl` on `problem`, its weights drawn from `seed` alone.

    The caller's random state is left as it was. Whatever the architecture's module raises comes through.
    """
    view = ProblemView.of(problem, dsl.output_mode)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = architecture_module(dsl.type).build(dsl.block.dump(), dsl.head, view)
        return Predecoder(body, view, dsl.output_mode)
