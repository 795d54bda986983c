"""The smoke env, small configs, and rounds that run once and are shared by read-only tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import Event
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.decoders import flops
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.runner import run_round
from autoqec.store import files
from autoqec.store.layout import RoundLayout

SMOKE = Path(__file__).parents[3] / "autoqec/envs/builtin/smoke.yaml"
SMALL = {"type": "mlp", "mlp": {"hidden": 16}, "training": {"batch_size": 256}}


@pytest.fixture(scope="session")
def env() -> EnvSpec:
    return files.load_env(SMOKE)[0]


@pytest.fixture(scope="session")
def env_text() -> str:
    return files.load_env(SMOKE)[1]


@pytest.fixture(scope="session")
def problem(env: EnvSpec) -> Problem:
    return Problem.from_env(env)


@pytest.fixture
def agent(problem: Problem) -> PredecoderAgent:
    return make_agent(problem)


@pytest.fixture
def layout(tmp_path: Path) -> RoundLayout:
    return RoundLayout(tmp_path, 1)


def make_agent(problem: Problem, seed: int = 3, config: dict[str, Any] = SMALL) -> PredecoderAgent:
    torch.set_num_threads(1)
    model = compile_predecoder(parse_dsl(config), problem, seed=seed)
    return PredecoderAgent(model, flops.count(model, problem.n_detectors).flops_per_syndrome)


@pytest.fixture(autouse=True, scope="module")
def quick_smoke() -> Any:
    """Shorten the smoke profile to half a second: these tests check what a round writes, not what it learns."""
    original = PROFILES["smoke"]
    PROFILES["smoke"] = original.model_copy(
        update={"train_shots": 2048, "finetune_shots": 192, "val_shots": 1000, "disk_mb": 8}
    )
    yield
    PROFILES["smoke"] = original


def config_for(env_text: str, round_dir: Path, config: dict[str, Any] | None = None, **more: Any) -> RunnerConfig:
    return RunnerConfig(
        env_yaml=env_text,
        predecoder_config=SMALL if config is None else config,
        profile="smoke",
        seed=more.pop("seed", 7),
        round_dir=str(round_dir),
        **more,
    )


class Ran:
    """A finished round: its config, metrics, files and events."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.events: list[Event] = []
        self.metrics: RoundMetrics = run_round(config, on_event=self.events.append)
        self.layout = RoundLayout(Path(config.round_dir).resolve(), config.round_idx)


@pytest.fixture(scope="module")
def ok_round(env_text: str, tmp_path_factory: pytest.TempPathFactory, quick_smoke: None) -> Ran:
    return Ran(config_for(env_text, tmp_path_factory.mktemp("ok") / "runs" / "r" / "round_1"))
