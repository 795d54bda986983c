"""Candidates for verification tests: honest networks, trained in seconds, and branches with cheating code."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import autoqec
from autoqec.contracts.dsl import GateShare, PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import PROFILES, Profile
from autoqec.decoders import checkpoint
from autoqec.decoders.base import Predecoder, ProblemView
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.gating import calibrate_gate
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler
from autoqec.store.files import dump_config
from autoqec.store.layout import RoundLayout
from autoqec.verification.verifier import VerifyRequest

SECRET = bytes(range(32))
CONFIG: dict[str, Any] = {"type": "mlp", "mlp": {"hidden": 64, "depth": 2}}
CHEATS = Path(__file__).parents[1] / "cheaters" / "modules"


def profile(test: int, effect: int, point: int = 5_000) -> Profile:
    return PROFILES["smoke"].model_copy(
        update={"judge_test_shots": test, "judge_effect_shots": effect, "judge_point_shots": point}
    )


def request(directory: Path, env: EnvSpec, weights: Path, **more: Any) -> VerifyRequest:
    """Return a config-only request for round 1 in `directory` with few shots; `more` overrides fields."""
    directory.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "env_text": dump_config(env.dump()),
        "round": RoundLayout(directory, 1),
        "checkpoint": weights,
        "dsl_config": CONFIG,
        "secret": SECRET,
        "profile": profile(5_000, 5_000),
        "run_id": "20250101-000000",
        "config_only": True,
    }
    return VerifyRequest(**{**values, **more})


def train(path: Path, problem: Problem, *, steps: int, seed: int = 5, config: dict[str, Any] = CONFIG) -> PredecoderDSL:
    """Train an honest predecoder on the other sector's detectors, with cross-entropy on the edges."""
    torch.set_num_threads(1)
    dsl = parse_dsl(config)
    model = compile_predecoder(dsl, problem, seed=seed)
    sampler = LabelledSampler(problem, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for step in range(steps):
        if step % 20 == 0:
            shots = sampler.draw(20 * 512)
        part = slice(step % 20 * 512, (step % 20 + 1) * 512)
        logits = model(torch.from_numpy(shots.detections[part].astype(np.float32)))
        truth = torch.from_numpy(shots.edges[part].astype(np.float32))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
    if isinstance(dsl.gate, GateShare):
        model.gate = calibrate_gate(problem, dsl.gate.share)
    checkpoint.save(path, model.eval(), dsl)
    return dsl


def cheat(
    name: str, directory: Path, problem: Problem, fill: Any = None, config: dict[str, Any] = CONFIG
) -> tuple[Path, Path]:
    """Return (checkpoint, modules_dir) of a branch whose mlp.py is the cheat; `fill(body)` sets its weights."""
    modules = directory / "modules"
    shutil.copytree(
        Path(autoqec.__file__).parent / "decoders" / "modules", modules, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(CHEATS / f"{name}.py", modules / "mlp.py")
    body = cheat_module(name).build({}, "linear", ProblemView.of(problem))
    if fill is not None:
        fill(body)
    model = Predecoder(body, ProblemView.of(problem), "soft_priors")
    weights = directory / "checkpoint.pt"
    checkpoint.save(weights, model, parse_dsl(config))
    return weights, modules


def cheat_module(name: str) -> Any:
    """Import the cheat's code in this process; it does nothing until it is called."""
    spec = importlib.util.spec_from_file_location(f"cheat_{name}", CHEATS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
