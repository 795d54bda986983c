"""Aggregates the episodes of a run into its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from autoqec.contracts.base import Contract
from autoqec.extensions.continual.environments.base import StepResult
from autoqec.extensions.continual.runtime.episode import EpisodeResult, score_of


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


def mean(scores: Sequence[float]) -> float:
    """Return the mean, or 0 for no scores."""
    return sum(scores) / len(scores) if scores else 0.0


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
