"""Detection of equivalent configs, by comparing the compiled networks on fixed shots and weights.

A setting can be without effect in combination with others (a residual path around no layer, say). Rules for every such
pair would need an update with each new option; comparing what the networks compute does not.
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

PROBE_SHOTS, PROBE_WEIGHT_SCALE, SIGNIFICANT_DIGITS = 16, 0.3, 6
MAX_PROBE_SIZE = 4_000_000  # width^2 x depth; larger networks are compared by config only


def find_equivalent(
    dsl: PredecoderDSL, others: Iterable[PredecoderDSL], *, finetunes: bool = True
) -> PredecoderDSL | None:
    """Return the first of `others` that equals `dsl`, or computes and trains the same; None if there is none.

    Args:
        dsl: The config to look for.
        others: Known configs. Networks are compiled only for those with the same training settings.
        finetunes: Whether the env's inner decoder supports fine-tuning.
    """
    training_signature = dsl.training_signature(finetunes=finetunes)
    for other in others:
        if dsl == other:
            return other
        if training_signature == other.training_signature(finetunes=finetunes):
            mine = fingerprint(dsl)
            if mine is not None and mine == fingerprint(other):
                return other
    return None


def fingerprint(dsl: PredecoderDSL) -> str | None:
    """Return a hash of what the network of `dsl` computes and of its gradients, independent of training settings.

    None if it is not available: the network uses code of a branch, or is too large to be run here.
    """
    config = {key: value for key, value in dsl.config().items() if key not in ("training", "gate")}
    return _fingerprint(canonical_json(config))


@lru_cache(maxsize=4096)
def _fingerprint(config: str) -> str | None:
    dsl = parse_dsl(json.loads(config))
    block = dsl.block.dump()
    width = block.get("hidden") or block.get("channels") or 1
    depth = block.get("depth") or block.get("layers") or 1
    if width**2 * depth > MAX_PROBE_SIZE:
        return None
    try:
        return _compute_fingerprint(dsl)
    except (ContractError, ImportError):
        return None


def _compute_fingerprint(dsl: PredecoderDSL) -> str:
    """Hash the outputs in training and eval mode, and the gradient of each weight that has one.

    Weights are drawn by name and shape, so that unused weights do not change the values of the others.
    """
    import torch

    from autoqec.decoders.dsl_compiler import compile_predecoder

    problem = _probe_problem()
    model = compile_predecoder(dsl, problem, seed=0)
    initial_values = {}
    for name, value in model.named_parameters():
        flat = value.detach().flatten()
        initial_values[name] = (
            float(flat[0]) if bool((flat == flat[0]).all()) else None
        )  # None: drawn from the round's seed
        seed = int.from_bytes(hashlib.sha256(f"{name} {tuple(value.shape)}".encode()).digest()[:4], "big")
        value.data = PROBE_WEIGHT_SCALE * torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(1)
    shots = (torch.rand(PROBE_SHOTS, problem.n_detectors, generator=generator) < 0.2).float()
    train_output = model.train()(shots)
    cotangent = torch.randn(train_output.shape, generator=generator)
    gradients = torch.autograd.grad((train_output * cotangent).sum(), list(model.parameters()), allow_unused=True)
    with torch.no_grad():
        eval_output = model.eval()(shots)
    lines = [_rounded(train_output), _rounded(eval_output)]
    for (name, initial_value), gradient in zip(initial_values.items(), gradients, strict=True):
        if gradient is not None and bool((gradient != 0).any()):
            lines.append(f"{name} {initial_value} {tuple(gradient.shape)} {_rounded(gradient.norm())}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _rounded(values: Tensor) -> str:
    return " ".join(f"{value:.{SIGNIFICANT_DIGITS - 1}g}" for value in values.detach().flatten().tolist())


@lru_cache(maxsize=1)
def _probe_problem() -> Problem:
    """Build a small surface code with both sectors and coordinates, so that every architecture can be compiled."""
    from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
    from autoqec.qec.problem import Problem

    env = EnvSpec(
        name="probe",
        code=StimGeneratorCode(task="surface_code:rotated_memory_z", distance=3, rounds=3),
        noise=CircuitDepolarizing(p=(0.01,), target_p=0.01),
        seed_policy=SeedPolicy(train=(0, 0), val=(1, 1), holdout=(2, 2)),
    )
    return Problem.from_env(env)
