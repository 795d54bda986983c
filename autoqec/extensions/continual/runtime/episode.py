"""Plays an episode (reset, then act, step and observe), records its calls, and validates on held-out environments."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoqec.errors import ContractError, StorageError
from autoqec.extensions.continual.agents.base import Agent, LMAgent
from autoqec.extensions.continual.environments.base import Environment, StepResult
from autoqec.extensions.language_models.clients.errors import LlmError
from autoqec.store import atomic
from autoqec.store.run_log import LOGGER


@dataclass
class EpisodeCallLog:
    """Writes the calls of one episode; the caller advances `step`.

    Attributes:
        folder: `llm_calls/train` or `llm_calls/validation/val_<N>`.
        context: Fields written into each file.
        step: 1-based step of the episode.
    """

    folder: Path
    context: dict[str, Any]
    step: int = 1
    _calls: int = 0

    def __call__(self, record: dict[str, Any]) -> None:
        """Write one call to its file."""
        self._calls += 1
        directory = self.folder / record["kind"]
        atomic.make_dir(directory)
        name = f"{self.context['episode_index']:06d}_{self.step:03d}_{self._calls:03d}.json"
        context = {**self.context, "step_index": self.step, "kind": record["kind"]}
        body = {key: value for key, value in record.items() if key != "kind"}
        atomic.write_json(directory / name, {"context": context, **body})


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


def mean(scores: Sequence[float]) -> float:
    """Return the mean, or 0 for no scores."""
    return sum(scores) / len(scores) if scores else 0.0


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
