"""RunTime: trains an agent on environments one after the other and measures it on the way."""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from typing import Any, TextIO

from autoqec import optional
from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import Agent, LMAgent, MemoryAgent
from autoqec.extensions.continual.environments.base import EnvDataset, Environment, StepResult
from autoqec.extensions.continual.runtime import checkpoints
from autoqec.extensions.continual.runtime.config import RunTimeConfig
from autoqec.extensions.continual.runtime.episode import (
    EpisodeCallLog,
    EpisodeResult,
    ScoredStep,
    ValidationEpisodes,
    play_episode,
    validate,
)
from autoqec.extensions.continual.runtime.scores import EpisodeRecord, ScoreFiles, ScoreWriter, aggregate
from autoqec.store import atomic


class RunTime:
    """Runs an agent over a dataset of environments.

    Args:
        config: How environments are visited, validated and checkpointed.
        env_dataset: Training environments.
        agent: The agent, modified in place.
        validation_dataset: Held-out environments.
        results_dir: Directory of all files. None writes no files, and options that need files raise UsageError.
        save_memory_path: Path inside `results_dir`, see OutputConfig.
        logger: Logger of the run.
        console: Stream for progress bars if `config.verbose`.
        seed: Seed of the environments' own generators; None leaves them unseeded.
    """

    def __init__(
        self,
        config: RunTimeConfig,
        env_dataset: EnvDataset[Any],
        agent: Agent[Any],
        *,
        validation_dataset: EnvDataset[Any] | None = None,
        results_dir: Path | str | None = None,
        save_memory_path: str | None = None,
        logger: logging.Logger | None = None,
        console: TextIO | None = None,
        seed: int | None = None,
    ) -> None:
        self.seed = seed
        self.config, self.env_dataset, self.agent = config, env_dataset, agent
        self.validation_dataset, self.save_memory_path = validation_dataset, save_memory_path
        self.logger = logger or logging.getLogger("autoqec.silent")
        self.console = console
        self.results_dir = Path(results_dir) if results_dir is not None else None
        self._scores = (
            ScoreFiles(self._require_results_dir(), config.scores_path) if config.scores_path is not None else None
        )
        self._checkpoints = self._checkpoint_manager()
        if config.log_calls or save_memory_path is not None:
            self._require_results_dir()
        lm_model = str(getattr(getattr(agent, "lm", None), "model", ""))
        self._score_writer = ScoreWriter(config.verbose_score_logging, lm_model, type(agent).__name__)
        self._episodes: list[EpisodeRecord] = []
        self._errors: list[str] = []
        self._next_env = 0
        self._episodes_seen = 0
        self._val_score: float | None = None

    def run(self) -> dict[str, Any]:
        """Run from the start or from the checkpoint, and return the result of `metrics.aggregate`."""
        envs = self.env_dataset.get_dataset()
        if not self._resume():
            self._begin()
        limit = self.config.max_envs_to_visit
        end = len(envs) if limit is None else min(limit, len(envs))
        self.logger.info("environments %d to %d of %d", self._next_env + 1, end, len(envs))
        with self._bar(end, "train") as bar:
            bar.update(min(self._next_env, end))
            while self._next_env < end:
                before = self._episodes_seen
                self._run_trials(envs[self._next_env])
                self._next_env += 1
                self._on_env_done(before)
                bar.update()
        metrics = aggregate(self._episodes, self._errors)
        self._save_memory(final=True)
        if self.results_dir is not None:
            atomic.write_json(self.results_dir / "metrics.json", metrics)
        self.logger.info("mean score %.4f over %d steps", metrics["mean_score"], metrics["train_steps"])
        return metrics

    def run_episode(self, environment: Environment) -> list[StepResult]:
        """One training episode, recorded like every other."""
        return [step.result for step in self._run_episode(environment).steps]

    def _begin(self) -> None:
        self._next_env = self._episodes_seen = self.config.start_episode_index
        for name, dataset in (("dataset", self.env_dataset), ("validation_dataset", self.validation_dataset)):
            self._errors += [f"{name}: {error}" for error in (dataset.errors if dataset is not None else [])]
        for error in self._errors:
            self.logger.error("%s", error)
        if self.config.run_validation_at_start:
            self._validate()
        if self._checkpoints is not None:
            validated = self.config.checkpoint_strategy == "top_k_val" and self._val_score is not None
            if self.config.checkpoint_on_start or validated:
                self._save_checkpoint()

    def _resume(self) -> bool:
        """Restore the state of the configured checkpoint; return False without one."""
        if self.config.resume_from is None:
            return False
        checkpoint = checkpoints.load(self.config.resume_from)
        checkpoint.restore(self.agent)
        state = checkpoint.state
        self._episodes, self._errors = list(state.episodes), list(state.errors)
        self._episodes_seen, self._next_env, self._val_score = state.episodes_seen, state.next_env, state.val_score
        if self._scores is not None and self.config.scores_path is not None:
            self._scores.carry_over(ScoreFiles(checkpoint.results_dir, self.config.scores_path), self._episodes_seen)
        checkpoints.restore_generators(state.rng)
        self.logger.info("resumed from %s after %d episodes", checkpoint.directory, self._episodes_seen)
        return True

    def _run_trials(self, env: Environment) -> None:
        """Run all trials of one environment."""
        if self.seed is not None:
            env.seed(checkpoints.env_seed(self.seed, "train", self._next_env))
        trials, carry = self.config.num_trials or 1, self.config.carry_memory_across_trials
        agent = self.agent
        keep = not carry and trials > 1 and self.config.memory_between_trials == "env_start"
        initial_memory = copy.deepcopy(agent.memory) if keep and isinstance(agent, MemoryAgent) else None
        for trial in range(trials):
            if trial > 0 and not carry and isinstance(agent, MemoryAgent):
                if initial_memory is None:
                    agent.memory.clear()
                else:
                    agent.memory = copy.deepcopy(initial_memory)
            episode_result = self._run_episode(env)
            if self.config.early_stop_on_success and episode_result.succeeded:
                break

    def _run_episode(self, env: Environment) -> EpisodeResult:
        self._episodes_seen += 1
        number = self._episodes_seen
        calls = self._calls("train", number, env)
        if isinstance(self.agent, LMAgent):
            self.agent.on_call = calls
        steps = 0

        def on_step(step: ScoredStep) -> None:
            nonlocal steps
            steps += 1
            if self._scores is not None:
                self._scores.append_train(self._score_writer.record("train", number, steps, step, env))
            if calls is not None:
                calls.step += 1

        self.agent.train()
        episode_result = play_episode(env, self.agent, max_steps=self.config.max_steps_per_episode, on_step=on_step)
        self._episodes.append(EpisodeRecord.of(env.env_id, env.env_type, episode_result))
        if episode_result.error is not None:
            self._errors.append(f"episode {number} ({env.env_id}): {episode_result.error}")
            self.logger.error("%s", self._errors[-1])
        score = episode_result.steps[-1].cum_score if episode_result.steps else 0.0
        self.logger.info("episode %d (%s): %d steps, score %.4f", number, env.env_id, len(episode_result.steps), score)
        return episode_result

    def _on_env_done(self, before: int) -> None:
        """Validate and save a checkpoint if due; trials may take several episodes, so a crossed multiple counts."""
        config = self.config
        validated = _crossed_multiple(before, self._episodes_seen, config.validation_freq) and self._validate()
        if validated:
            self._save_memory(final=False)
        by_score = config.checkpoint_strategy == "top_k_val"
        if validated if by_score else _crossed_multiple(before, self._episodes_seen, config.checkpoint_every_episodes):
            self._save_checkpoint()

    def _validate(self) -> bool:
        """Validate and return True, or return False without a validation dataset."""
        if self.validation_dataset is None:
            self.logger.warning("validation skipped: there is no validation_dataset")
            return False
        envs, seen = self.validation_dataset.get_dataset(), self._episodes_seen
        if self.seed is not None:
            for index, env in enumerate(envs):
                env.seed(checkpoints.env_seed(self.seed, f"val {seen}", index))
        with self._bar(len(envs), f"val {seen}") as bar:
            result = validate(
                self.agent,
                envs,
                workers=self.config.workers,
                max_steps=self.config.max_steps_per_episode,
                calls=lambda number, env: self._calls(f"validation/val_{seen}", number, env),
                on_done=bar.update,
            )
        if self._scores is not None:
            self._scores.write_val(seen, self._val_records(envs, result))
        for error in result.errors(envs):
            self._errors.append(f"after {seen} episodes: {error}")
            self.logger.error("%s", self._errors[-1])
        self._val_score = result.mean_score
        self.logger.info("validation after %d episodes: mean score %.4f", seen, result.mean_score)
        return True

    def _val_records(self, envs: list[Environment], result: ValidationEpisodes) -> list[dict[str, Any]]:
        return [
            self._score_writer.record("val", episode, number, step, env)
            for episode, (env, episode_result) in enumerate(zip(envs, result.episode_result, strict=True), start=1)
            for number, step in enumerate(episode_result.steps, start=1)
        ]

    def _save_checkpoint(self) -> None:
        if self._checkpoints is None:
            return
        checkpoint_base = self._checkpoints.directory / "ep"
        state = checkpoints.RuntimeState(
            episodes_seen=self._episodes_seen,
            next_env=self._next_env,
            val_score=self._val_score,
            episodes=tuple(self._episodes),
            errors=tuple(self._errors),
            results_dir=os.path.relpath(self._require_results_dir(), checkpoint_base),
            rng=checkpoints.capture_generators(),
            sha256={},
        )
        self._checkpoints.save(state, self.agent)
        self.logger.info("checkpoint after %d episodes", self._episodes_seen)

    def _save_memory(self, *, final: bool) -> None:
        if self.save_memory_path is None or not isinstance(self.agent, MemoryAgent):
            return
        path = self._require_results_dir() / self.save_memory_path
        if path.suffix != ".jsonl":
            path = path / f"memory_{self._episodes_seen}.jsonl"
        elif not final:
            return
        atomic.make_dir(path.parent)
        self.agent.memory.save(path)

    def _calls(self, folder: str, episode: int, env: Environment) -> EpisodeCallLog | None:
        if not self.config.log_calls:
            return None
        context = {
            "mode": "train" if folder == "train" else "val",
            "episode_index": episode,
            "seen_episodes": self._episodes_seen,
            "env_id": env.env_id,
            "lm_model": self._score_writer.lm_model,
            "agent_type": self._score_writer.agent_type,
        }
        return EpisodeCallLog(self._require_results_dir() / "llm_calls" / folder, context)

    def _checkpoint_manager(self) -> checkpoints.CheckpointManager | None:
        config = self.config
        if config.checkpoint_dir is None:
            return None
        keep = checkpoints.RetentionPolicy(config.checkpoint_strategy, config.checkpoint_keep_last)
        return checkpoints.CheckpointManager(self._require_results_dir() / config.checkpoint_dir, keep)

    def _require_results_dir(self) -> Path:
        if self.results_dir is None:
            raise UsageError(
                "scores, checkpoints, call logs and memories need a results directory", location="results_dir"
            )
        return self.results_dir

    def _bar(self, total: int, name: str) -> Any:
        tqdm = optional.load("tqdm", extra="evaluate").tqdm
        return tqdm(total=total, desc=name, disable=not self.config.verbose, file=self.console, leave=False)


def _crossed_multiple(before: int, now: int, every: int | None) -> bool:
    """Return whether a multiple of `every` lies in (before, now]."""
    return every is not None and now // every > before // every
