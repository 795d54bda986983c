"""Measures the value of a memory: the same agent with and without it on the same environments."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.memory_agent import LMAgentConfig, MemorylessAgentConfig
from autoqec.extensions.continual.agents.registry import agent_class
from autoqec.extensions.continual.environments.design_text import RoundRunner
from autoqec.extensions.continual.runtime.config import RunConfig, load_config
from autoqec.extensions.continual.runtime.episode import score_of
from autoqec.extensions.continual.runtime.main import Evaluation, evaluate_config
from autoqec.extensions.continual.runtime.metrics import mean


@dataclass(frozen=True)
class MemoryGain:
    """Mean difference of episode scores, with minus without memory, and its 95% interval from paired differences.

    Pairs are episodes at the same position. There is no interval for fewer than two pairs.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class AblationResult:
    """Evaluations with and without memory, and the gain."""

    stateful: Evaluation
    memoryless: Evaluation
    gain: MemoryGain

    @property
    def exit_code(self) -> int:
        """The larger exit code of the two evaluations."""
        return max(self.stateful.exit_code, self.memoryless.exit_code)


def evaluate_ablation(
    config_path: Path | str, *, console: TextIO | None = None, round_runner: RoundRunner | None = None
) -> AblationResult:
    """Run a config with its memory, then without it.

    Raises:
        UsageError: If the agent of the config has no memory.
    """
    config = load_config(config_path)
    if config.agent.type == MemorylessAgentConfig().type:
        raise UsageError("the agent of this config has no memory", location=str(config_path))
    stateful = evaluate_config(config, console=console, round_runner=round_runner)
    memoryless = evaluate_config(without_memory(config), console=console, round_runner=round_runner)
    return AblationResult(stateful, memoryless, gain(stateful.metrics, memoryless.metrics))


def without_memory(config: RunConfig) -> RunConfig:
    """Return the config with the same model and prompts and a memoryless agent."""
    agent: LMAgentConfig = config.agent
    system_prompt = agent.system_prompt or agent_class(agent).default_system_prompt
    agent_without_memory = MemorylessAgentConfig(lm_config=agent.lm_config, system_prompt=system_prompt)
    return config.model_copy(update={"agent": agent_without_memory, "memory": None})


def gain(stateful: dict[str, Any], memoryless: dict[str, Any]) -> MemoryGain:
    """Compute the gain from the metrics of two runs.

    Raises:
        UsageError: If the runs have different numbers of episodes.
    """
    with_memory_scores, without_memory_scores = _scores(stateful), _scores(memoryless)
    if len(with_memory_scores) != len(without_memory_scores):
        raise UsageError(
            f"{len(with_memory_scores)} episodes against {len(without_memory_scores)} cannot be paired",
            location="early_stop_on_success",
        )
    differences = [
        with_memory - without for with_memory, without in zip(with_memory_scores, without_memory_scores, strict=True)
    ]
    if len(differences) < 2:
        return MemoryGain(mean(differences), None, None, len(differences))
    centre = statistics.fmean(differences)
    half = _t95(len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return MemoryGain(centre, centre - half, centre + half, len(differences))


def _scores(metrics: dict[str, Any]) -> list[float]:
    return [mean([score_of(step["feedback"]) for step in episode]) for episode in metrics["episodes"]]


def _t95(degrees_of_freedom: int) -> float:
    """Return the 97.5% quantile of Student's t distribution."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees_of_freedom))
