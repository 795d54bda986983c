"""Runs one episode: reset, then act, step and observe until it is done, capped or fails."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from autoqec.errors import ContractError, StorageError
from autoqec.extensions.continual.agents.base import Agent
from autoqec.extensions.continual.environments.base import Environment, StepResult
from autoqec.extensions.language_models.clients.errors import LlmError
from autoqec.store.run_log import LOGGER


@dataclass(frozen=True)
class ScoredStep:
    """A step and its score; `observation` is the one that was acted on."""

    result: StepResult
    observation: str
    info: dict[str, Any]
    score: float
    cum_score: float
    started: datetime
    ended: datetime
    duration_ms: float


@dataclass
class EpisodeResult:
    """The steps of an episode and the error that ended it early, if any."""

    steps: list[ScoredStep] = field(default_factory=list)
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the last feedback reports success."""
        if not self.steps or self.error is not None:
            return False
        return bool(self.steps[-1].result.feedback.get("correct", self.steps[-1].score >= 1.0))


StepCallback = Callable[[ScoredStep], None]


def play_episode(
    env: Environment, agent: Agent[Any], *, max_steps: int | None = None, on_step: StepCallback | None = None
) -> EpisodeResult:
    """Play one episode. An exception of the environment or agent ends the episode, not the run.

    Args:
        env: The environment.
        agent: The agent; `end_episode` is called once unless an exception ended the episode.
        max_steps: Cap on the number of steps.
        on_step: Called after the agent has observed each step.

    Raises:
        StorageError: Passed on, because results could not be written.
        LlmError: Passed on if no call of the model can succeed, such as with a wrong key.
    """
    episode_result = EpisodeResult()
    try:
        obs: str | None = env.reset()
        agent.reset()
        done = False
        while not done and (max_steps is None or len(episode_result.steps) < max_steps):
            if obs is None:
                raise ContractError("no observation, and the episode is not done", location=env.env_id)
            before = episode_result.steps[-1].cum_score if episode_result.steps else 0.0
            step = _step(env, agent, obs, before)
            episode_result.steps.append(step)
            if on_step is not None:
                on_step(step)
            obs, done = step.result.obs, step.result.done
        agent.end_episode()
    except StorageError:
        raise
    except Exception as error:
        if isinstance(error, LlmError) and error.is_permanent:
            raise
        LOGGER.warning("the episode failed", exc_info=True)
        episode_result.error = f"{type(error).__name__}: {error}"
    return episode_result


def _step(env: Environment, agent: Agent[Any], obs: str, before: float) -> ScoredStep:
    started, clock = datetime.now(UTC), time.monotonic()
    action = agent.act(obs)
    after, feedback, done, info = env.step(action)
    agent.observe(after, feedback, done)
    duration_ms = 1000 * (time.monotonic() - clock)
    score = score_of(feedback)
    result = StepResult(obs=after, action=action, feedback=to_jsonable(feedback), done=done)
    return ScoredStep(
        result=result,
        observation=obs,
        info=to_jsonable(info),
        score=score,
        cum_score=before + score,
        started=started,
        ended=datetime.now(UTC),
        duration_ms=round(duration_ms, 3),
    )


def score_of(feedback: Mapping[str, Any]) -> float:
    """Return `score` of a feedback, else `correct` as 0 or 1, else 0; clipped to [0, 1]."""
    value = feedback.get("score")
    if value is None:
        value = feedback.get("correct", 0.0)
    try:
        score = float(value)
    except (TypeError, ValueError):
        return 0.0
    return min(max(score, 0.0), 1.0) if not math.isnan(score) else 0.0


def to_jsonable(value: Any) -> Any:
    """Return JSON-able values: other objects become their text, and non-finite numbers become null."""

    def finite(part: Any) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            return None
        if isinstance(part, dict):
            return {str(key): finite(item) for key, item in part.items()}
        if isinstance(part, list | tuple):
            return [finite(item) for item in part]
        return part

    return finite(json.loads(json.dumps(value, default=str)))
