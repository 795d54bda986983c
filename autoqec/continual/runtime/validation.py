"""Validation: held-out environments side by side, with a memory that nobody can write to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from autoqec.continual.agents.base import Agent
from autoqec.continual.agents.memory_agent import LMAgent
from autoqec.continual.environments.base import Environment
from autoqec.continual.runtime.calls import EpisodeCalls
from autoqec.continual.runtime.episode import Played, ScoredStep, play
from autoqec.continual.runtime.metrics import mean


@dataclass(frozen=True)
class Validated:
    """Episodes in the dataset's order."""

    played: tuple[Played, ...]

    @property
    def mean_score(self) -> float:
        """Over all steps; 0 where there is none."""
        return mean([step.score for episode in self.played for step in episode.steps])

    def errors(self, envs: Sequence[Environment]) -> list[str]:
        pairs = zip(envs, self.played, strict=True)
        return [f"validation of {env.env_id}: {played.error}" for env, played in pairs if played.error]


def validate(
    agent: Agent[Any],
    envs: Sequence[Environment],
    *,
    workers: int,
    max_steps: int | None,
    calls: Callable[[int, Environment], EpisodeCalls | None],
    on_done: Callable[[], None],
) -> Validated:
    """Each environment once, in its own clone of the agent. The agent's mode is what it was before, come what may.

    calls: who files the calls of an episode (1-based), or None. on_done: after each episode, for a progress bar.
    """

    def one(place: int) -> Played:
        env = envs[place]
        twin = agent.clone_for_episode(training=False, share_memory=True)
        filed = calls(place + 1, env)
        if isinstance(twin, LMAgent):
            twin.on_call = filed

        def watch(step: ScoredStep) -> None:
            if filed is not None:
                filed.step += 1

        played = play(env, twin, max_steps=max_steps, watch=watch)
        on_done()
        return played

    with agent.eval_mode(), ThreadPoolExecutor(workers, thread_name_prefix="validation") as pool:
        return Validated(tuple(pool.map(one, range(len(envs)))))
