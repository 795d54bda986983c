"""Runs one evaluation from one YAML file and writes a results directory."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from autoqec.extensions.continual.agents.code_execution import run_sandboxed
from autoqec.extensions.continual.agents.registry import build_agent
from autoqec.extensions.continual.environments.datasets import build_dataset
from autoqec.extensions.continual.environments.design_text import RoundRunner
from autoqec.extensions.continual.runtime import checkpoints, logs, rng
from autoqec.extensions.continual.runtime.config import OutputConfig, RunConfig, load_config
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
        rng.seed_all(config.seed)
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
