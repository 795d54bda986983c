"""Validation: held-out environments in parallel, with a frozen memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from autoqec.extensions.continual.agents.base import Agent
from autoqec.extensions.continual.agents.memory_agent import LMAgent
from autoqec.extensions.continual.environments.base import Environment
from autoqec.extensions.continual.runtime.calls import EpisodeCallLog
from autoqec.extensions.continual.runtime.episode import EpisodeResult, ScoredStep, play_episode
from autoqec.extensions.continual.runtime.metrics import mean


@dataclass(frozen=True)
class ValidationEpisodes:
    """Episodes in the order of the dataset."""

    episode_result: tuple[EpisodeResult, ...]

    @property
    def mean_score(self) -> float:
        """Mean over all steps; 0 without steps."""
        return mean([step.score for episode in self.episode_result for step in episode.steps])

    def errors(self, envs: Sequence[Environment]) -> list[str]:
        """Return one line per failed episode."""
        pairs = zip(envs, self.episode_result, strict=True)
        return [
            f"validation of {env.env_id}: {episode_result.error}"
            for env, episode_result in pairs
            if episode_result.error
        ]


def validate(
    agent: Agent[Any],
    envs: Sequence[Environment],
    *,
    workers: int,
    max_steps: int | None,
    calls: Callable[[int, Environment], EpisodeCallLog | None],
    on_done: Callable[[], None],
) -> ValidationEpisodes:
    """Play each environment once with its own clone of the agent, whose mode is restored afterwards.

    Args:
        agent: The agent.
        envs: The held-out environments.
        workers: Number of threads.
        max_steps: Cap on the steps of an episode.
        calls: Returns the call log of an episode (1-based), or None.
        on_done: Called after each episode, for a progress bar.
    """

    def validate_one(index: int) -> EpisodeResult:
        env = envs[index]
        clone = agent.clone_for_episode(training=False, share_memory=True)
        call_log = calls(index + 1, env)
        if isinstance(clone, LMAgent):
            clone.on_call = call_log

        def on_step(step: ScoredStep) -> None:
            if call_log is not None:
                call_log.step += 1

        episode_result = play_episode(env, clone, max_steps=max_steps, on_step=on_step)
        on_done()
        return episode_result

    with agent.eval_mode(), ThreadPoolExecutor(workers, thread_name_prefix="validation") as pool:
        return ValidationEpisodes(tuple(pool.map(validate_one, range(len(envs)))))
