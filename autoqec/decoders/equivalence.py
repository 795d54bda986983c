"""Whether two configs name one function: asked of the compiled nets, on fixed shots and fixed weights.

A knob can be without effect beside others (a residual path past no layer, fine-tuning that is left out). Rules for
every such pair would be forgotten with the next option; what a net does with its inputs is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from autoqec.qec.problem import Problem

SHOTS, STIR, DIGITS = 16, 0.3, 6
WIDEST = 4_000_000  # width^2 x depth; nets beyond are told apart by their configs alone


def twin(dsl: PredecoderDSL, others: Iterable[PredecoderDSL], *, finetunes: bool = True) -> PredecoderDSL | None:
    """The first of `others` that is the same config, or computes and learns the same; None where none does.

    finetunes: whether the env's backend can be fine-tuned through. Nets are compiled only for configs of one recipe.
    """
    recipe = dsl.recipe(finetunes=finetunes)
    for other in others:
        if dsl == other:
            return other
        if recipe == other.recipe(finetunes=finetunes):
            mine = fingerprint(dsl)
            if mine is not None and mine == fingerprint(other):
                return other
    return None


def fingerprint(dsl: PredecoderDSL) -> str | None:
    """A hash over what the net of `dsl` computes and how it answers to its weights; training plays no part.

    None where it can't be asked: code of a branch's own, or a net too large to be tried in passing.
    """
    config = {key: value for key, value in dsl.config().items() if key != "training"}
    return _fingerprint(canonical_json(config))


@lru_cache(maxsize=4096)
def _fingerprint(config: str) -> str | None:
    dsl = parse_dsl(json.loads(config))
    block = dsl.block.dump()
    width = block.get("hidden") or block.get("channels") or 1
    depth = block.get("depth") or block.get("layers") or 1
    if width**2 * depth > WIDEST:
        return None
    try:
        return _asked(dsl)
    except (ContractError, ImportError):
        return None


def _asked(dsl: PredecoderDSL) -> str:
    """Outputs in training and in use, and the gradient of each weight that has one.

    Weights are drawn by name and shape: those that nothing reads must not shift the stream that fills the others.
    """
    import torch

    from autoqec.decoders.dsl_compiler import compile_predecoder

    problem = _probe()
    model = compile_predecoder(dsl, problem, seed=0)
    starts = {}
    for name, value in model.named_parameters():
        flat = value.detach().flatten()
        starts[name] = float(flat[0]) if bool((flat == flat[0]).all()) else None  # None: drawn from the round's seed
        seed = int.from_bytes(hashlib.sha256(f"{name} {tuple(value.shape)}".encode()).digest()[:4], "big")
        value.data = STIR * torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(1)
    shots = (torch.rand(SHOTS, problem.n_detectors, generator=generator) < 0.2).float()
    trained = model.train()(shots)
    pull = torch.randn(trained.shape, generator=generator)
    grown = torch.autograd.grad((trained * pull).sum(), list(model.parameters()), allow_unused=True)
    with torch.no_grad():
        used = model.eval()(shots)
    said = [_rounded(trained), _rounded(used)]
    for (name, start), slope in zip(starts.items(), grown, strict=True):
        if slope is not None and bool((slope != 0).any()):
            said.append(f"{name} {start} {tuple(slope.shape)} {_rounded(slope.norm())}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _rounded(values: Tensor) -> str:
    return " ".join(f"{value:.{DIGITS - 1}g}" for value in values.detach().flatten().tolist())


@lru_cache(maxsize=1)
def _probe() -> Problem:
    """A small surface code: both sectors, coordinates, everything that any family reads."""
    from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
    from autoqec.qec.problem import Problem

    env = EnvSpec(
        name="probe",
        code=StimGeneratorCode(task="surface_code:rotated_memory_z", distance=3, rounds=3),
        noise=CircuitDepolarizing(p=(0.01,), target_p=0.01),
        seed_policy=SeedPolicy(train=(0, 0), val=(1, 1), holdout=(2, 2)),
    )
    return Problem.from_env(env)
