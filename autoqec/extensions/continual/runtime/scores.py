"""Score files, one line per training step and one file per validation, and the metrics of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.base import Contract
from autoqec.extensions.continual.environments.base import Environment, StepResult
from autoqec.extensions.continual.runtime.episode import EpisodeResult, ScoredStep, mean, score_of
from autoqec.store import atomic, jsonl


class EpisodeRecord(Contract):
    """One episode as checkpoints store it."""

    env_id: str
    env_type: str
    steps: tuple[StepResult, ...]
    error: str | None = None

    @classmethod
    def of(cls, env_id: str, env_type: str, episode_result: EpisodeResult) -> EpisodeRecord:
        """Build the record of a played episode."""
        steps = tuple(step.result for step in episode_result.steps)
        return cls(env_id=env_id, env_type=env_type, steps=steps, error=episode_result.error)


def aggregate(episodes: Sequence[EpisodeRecord], errors: Sequence[str]) -> dict[str, Any]:
    """Return the value of `run()`: mean over all steps, counts, and the steps of each episode.

    `tasks` is present if a feedback has figures of its own (`extra`), `errors` if something failed. The result depends
    only on the arguments, so that a resumed run gives the figures of an uninterrupted one.
    """
    scores = [score_of(step.feedback) for episode in episodes for step in episode.steps]
    metrics: dict[str, Any] = {
        "mean_score": mean(scores),
        "train_steps": len(scores),
        "train_episodes": sum(episode.error is None for episode in episodes),
        "episodes": [[step.dump() for step in episode.steps] for episode in episodes],
    }
    tasks = {kind: _task(episodes, kind) for kind in sorted({episode.env_type for episode in episodes})}
    if any("confusion" in task or "extra_means" in task for task in tasks.values()):
        metrics["tasks"] = tasks
    if errors:
        metrics["errors"] = list(errors)
    return metrics


def _task(episodes: Sequence[EpisodeRecord], env_type: str) -> dict[str, Any]:
    """Return the figures of one environment type: confusion matrix, and means of numbers in `extra`."""
    feedbacks = [step.feedback for episode in episodes if episode.env_type == env_type for step in episode.steps]
    task: dict[str, Any] = {
        "steps": len(feedbacks),
        "mean_score": mean([score_of(feedback) for feedback in feedbacks]),
        "accuracy": mean([float(bool(feedback.get("correct"))) for feedback in feedbacks]),
    }
    extras = [feedback["extra"] for feedback in feedbacks if isinstance(feedback.get("extra"), dict)]
    answered = [extra for extra in extras if {"expected", "chosen"} <= extra.keys()]
    pairs = Counter((extra["expected"], extra["chosen"] or "none") for extra in answered)
    if pairs:
        task["confusion"] = {
            row: {column: count for (expected, column), count in sorted(pairs.items()) if expected == row}
            for row in sorted({expected for expected, _ in pairs})
        }
    numbers = {
        name: [extra[name] for extra in extras if isinstance(extra.get(name), int | float)]
        for name in sorted({name for extra in extras for name in extra})
    }
    means = {name: mean(values) for name, values in numbers.items() if values}
    if means:
        task["extra_means"] = means
    return task


Mode = Literal["train", "val"]


@dataclass(frozen=True)
class ScoreFiles:
    """Score files below the results directory, at `scores_path` without its suffix."""

    results_dir: Path
    scores_path: str

    @property
    def base(self) -> Path:
        """Directory of the score files."""
        return (self.results_dir / self.scores_path).with_suffix("")

    @property
    def train(self) -> Path:
        """File of the training scores."""
        return self.base / "train" / Path(self.scores_path).with_suffix(".jsonl").name

    def val(self, seen: int) -> Path:
        """Return the file of the validation after `seen` episodes."""
        return self.base / "val" / f"{seen}_seen_episodes_scores.jsonl"

    def append_train(self, record: dict[str, Any]) -> None:
        """Append one line; it is durable on return."""
        atomic.make_dir(self.train.parent)
        jsonl.append(self.train, record)

    def write_val(self, seen: int, records: Iterable[dict[str, Any]]) -> None:
        """Write one validation, sorted by (episode, step) regardless of thread order."""
        ordered = sorted(records, key=lambda record: (record["episode_index"], record["step_index"]))
        atomic.make_dir(self.val(seen).parent)
        atomic.write_text(self.val(seen), "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in ordered))

    def carry_over(self, old: ScoreFiles, episodes: int) -> None:
        """Copy the scores of a resumed run up to its checkpoint."""
        lines = [line for line in jsonl.read(old.train) if line["episode_index"] <= episodes]
        if lines:
            atomic.make_dir(self.train.parent)
            atomic.write_text(self.train, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        for path in sorted((old.base / "val").glob("*_seen_episodes_scores.jsonl")):
            seen = path.name.partition("_")[0]
            if seen.isdecimal() and int(seen) <= episodes:
                atomic.make_dir(self.val(int(seen)).parent)
                atomic.write_bytes(self.val(int(seen)), path.read_bytes())


@dataclass(frozen=True)
class ScoreWriter:
    """Builds score records; `verbose` adds texts, times, agent and model."""

    verbose: bool
    lm_model: str
    agent_type: str

    def record(self, mode: Mode, episode: int, number: int, step: ScoredStep, env: Environment) -> dict[str, Any]:
        """Return one record; `episode` and `number` are 1-based, and `number` counts within the episode."""
        core = {
            "timestamp": format_timestamp(step.ended),
            "mode": mode,
            "episode_index": episode,
            "step_index": number,
            "score": step.score,
            "episode_cum_score": step.cum_score,
            "env_id": env.env_id,
            "env_type": env.env_type,
        }
        if not self.verbose:
            return core
        return {
            **core,
            "observation": step.observation,
            "action": step.result.action,
            "feedback": step.result.feedback,
            "info": step.info,
            "lm_model": self.lm_model,
            "agent_type": self.agent_type,
            "step_start": format_timestamp(step.started),
            "step_end": format_timestamp(step.ended),
            "duration_ms": step.duration_ms,
        }


def format_timestamp(moment: datetime) -> str:
    """Return a time as 2024-01-15T10:30:45.123456Z."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
