"""Runs the evaluation of a YAML file into a results directory, and measures the value of a memory."""

from __future__ import annotations

import logging
import math
import statistics
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import LMAgentConfig, MemorylessAgentConfig
from autoqec.extensions.continual.agents.cheatsheet import run_sandboxed
from autoqec.extensions.continual.agents.registry import agent_class, build_agent
from autoqec.extensions.continual.environments.datasets import build_dataset
from autoqec.extensions.continual.environments.design_text import RoundRunner
from autoqec.extensions.continual.runtime import checkpoints, logs
from autoqec.extensions.continual.runtime.config import OutputConfig, RunConfig, load_config
from autoqec.extensions.continual.runtime.episode import mean, score_of
from autoqec.extensions.continual.runtime.runtime import RunTime
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client
from autoqec.extensions.language_models.clients.errors import LlmAuthError
from autoqec.store import atomic


@dataclass(frozen=True)
class Evaluation:
    """Results directory and metrics of an evaluation."""

    results_dir: Path
    metrics: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """1 if a failure was recorded during the run, else 0."""
        return 1 if self.metrics.get("errors") else 0


def evaluate(
    config_path: Path | str,
    *,
    console: TextIO | None = None,
    resume_from: str | None = None,
    round_runner: RoundRunner | None = None,
) -> Evaluation:
    """Run the evaluation that a YAML file describes.

    Args:
        config_path: The file, or the name of a packaged example.
        console: Stream for log lines and progress bars if the config is verbose; default stdout.
        resume_from: Checkpoint to resume from, overriding the config.
        round_runner: Runs real rounds for designs.

    Raises:
        UsageError: If the config is invalid; nothing has been written then.
    """
    config = load_config(config_path)
    if resume_from is not None:
        absolute = str(Path(resume_from).absolute())
        config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"resume_from": absolute})})
    return evaluate_config(config, console=console, round_runner=round_runner)


def evaluate_config(
    config: RunConfig, *, console: TextIO | None = None, round_runner: RoundRunner | None = None
) -> Evaluation:
    """Run an evaluation from a config with absolute paths; see `evaluate`."""
    config = _resumable(config)
    if config.seed is not None:
        checkpoints.seed_all(config.seed)
    with logs.package_warnings() as write_warnings_to:
        agent = build_agent(config.agent, _language_model(config.lm_config), run_code=run_sandboxed)
        train = build_dataset(config.dataset, round_runner=round_runner)
        validation = config.validation_dataset
        held_out = build_dataset(validation, round_runner=round_runner) if validation is not None else None

        results = new_results_dir(Path(config.output.results_dir))
        atomic.write_text(results / "config.yaml", config.snapshot())
        console_stream = (console or sys.stdout) if config.runtime.verbose else None
        logger = _logger(config.output, results, console_stream)
        write_warnings_to(logger)
        try:
            for name, part in (("agent", agent), ("dataset", train), ("validation", held_out)):
                if part is not None:
                    part.logger = logs.child_logger(logger, name)
            runtime = RunTime(
                config.runtime,
                train,
                agent,
                validation_dataset=held_out,
                results_dir=results,
                save_memory_path=config.output.save_memory_path,
                logger=logs.child_logger(logger, "runtime"),
                console=console_stream,
                seed=config.seed,
            )
            return Evaluation(results, runtime.run())
        except BaseException as error:
            logger.error("ended early: %s: %s", type(error).__name__, error)
            raise
        finally:
            logs.close(logger)


def _logger(output: OutputConfig, results: Path, console: TextIO | None) -> logging.Logger:
    return logs.setup_logger(
        "run",
        output.log_level,
        results / "run.log",
        console=console,
        log_format=output.log_format,
        max_bytes=output.log_max_bytes,
        backups=output.log_backups,
    )


def _language_model(config: LMConfig) -> LanguageModel:
    try:
        return get_lm_client(config)
    except LlmAuthError as error:
        error.hint = (
            f"{error.hint}; or run without a model: `lm: {{model: scripted:ANSWERS.jsonl}}` in the config, as the "
            "example `autoqec evaluate toy_inmemory` does"
        )
        raise


def new_results_dir(base: Path) -> Path:
    """Create and return base/YYYYMMDD_HHMMSS (UTC), with a suffix `_2`, `_3`, … if it exists."""
    stamp = datetime.now(UTC).strftime("%Y%m%d_%H%M%S")
    atomic.make_dir(base)
    number = 1
    while True:
        path = base / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            atomic.make_dir(path, exclusive=True)
            return path
        except FileExistsError:
            number += 1


def _resumable(config: RunConfig) -> RunConfig:
    """Return the config with the start index of its checkpoint; raises for a damaged checkpoint."""
    if config.runtime.resume_from is None:
        return config
    next_env = checkpoints.load(config.runtime.resume_from).state.next_env
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"start_episode_index": next_env})})


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
