"""Uses an agent that RunTime trained, with its memory, as the Ideator or the Analyst of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.views import AnalystView, IdeatorView, RoundRow
from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import LMAgent
from autoqec.extensions.continual.agents.registry import build_agent, parse_agent_config
from autoqec.extensions.continual.environments.datasets import VERDICTS, verdict_question
from autoqec.extensions.continual.environments.design import ActionSpace, EnvFeatures, PredecoderDraft
from autoqec.extensions.continual.environments.design_text import format_choices, format_observation, parse_proposal
from autoqec.extensions.continual.environments.qa import LETTERS, MCQEnv
from autoqec.extensions.continual.runtime import checkpoints
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.ideators import analyst as mechanical
from autoqec.ideators import moves, space
from autoqec.ideators.moves import Move
from autoqec.ideators.search_state import SearchState
from autoqec.store import files
from autoqec.store.round_files import read_metrics

MAX_SHOWN = 30  # most recent measured rounds in the observation


def load_agent(checkpoint: Path | str, lm: LanguageModel) -> LMAgent[Any]:
    """Return the agent of a checkpoint with its memory, in evaluation mode.

    Raises:
        UsageError: As `checkpoints.load`.
        ContractError: As `checkpoints.load`.
    """
    loaded = checkpoints.load(checkpoint)
    path = loaded.directory / "agent.json"
    config = parse_agent_config(json.loads(path.read_text(encoding="utf-8"))["config"], location=str(path))
    if config.agent_class is not None:  # the checkpoint may come from anyone
        raise UsageError(
            f"a checkpoint may not name code to run; this one names {config.agent_class!r}",
            location=f"{path}: agent_class",
            hint="use a checkpoint of an agent without `agent_class`",
        )
    agent = build_agent(config, lm)
    loaded.restore(agent)
    agent.eval()
    return agent


def ideator(
    checkpoint: Path | str, lm: LanguageModel, *, without_memory: bool = False
) -> Callable[[IdeatorView], IdeatorResponse]:
    """Return an ideator that asks the trained agent in the format of `DesignTextEnv` and learns nothing.

    A reply that cannot be parsed, is not in the action space, or was tried before raises UsageError; the caller then
    uses an ideator without a model.

    Args:
        checkpoint: An `ep_…` directory, or `latest`.
        lm: The language model of the agent.
        without_memory: Clear the memory first, for an ablation.
    """
    agent = load_agent(checkpoint, lm)
    memory = getattr(agent, "memory", None)
    if without_memory and memory is not None:
        memory.clear()
    action_space = ActionSpace.standard()

    def propose(view: IdeatorView) -> IdeatorResponse:
        features = EnvFeatures.of(view.require_env())
        state = SearchState.read(view)
        previous = [_format_outcome(number, row) for number, row in enumerate(state.observed[-MAX_SHOWN:], start=1)]
        clone = agent.clone_for_episode()
        with agent.frozen():
            action = clone.act(format_observation(features, action_space, previous, len(previous) + 1))
        draft = parse_proposal(action, action_space, PredecoderDraft(features))
        name = type(agent).__name__
        config = state.with_pins(draft.config())
        if config is None or not state.is_admissible(config):
            raise UsageError("the design was already tried, or violates a pin", location="proposal")
        text = f"{name}, with what it learned on other codes, expects fewer errors from {format_choices(draft.choices)}"
        slug = f"memory-{config['type']}-{draft.signature[:6]}"
        return moves.to_response(Move(slug, text, config), source=f"{name} {Path(checkpoint).name} {state.n_proposed}")

    return propose


def analyst(checkpoint: Path | str, lm: LanguageModel) -> Callable[[AnalystView], AnalystResponse]:
    """Return an Analyst that asks the trained agent for the verdict, in the format of `RunHistoryQA`.

    Figures and advice come from the rule-based Analyst; only the nomination is the agent's. Rounds that failed or were
    not measured are not put to the agent. A reply without a verdict raises UsageError.
    """
    agent = load_agent(checkpoint, lm)

    def nominate(view: AnalystView) -> AnalystResponse:
        mechanical_response = mechanical.analyse(view)
        metrics_path = view.metrics_path
        metrics = read_metrics(metrics_path)
        if metrics.status != "ok" or not metrics.val_shots:
            return mechanical_response
        config = files.load_yaml(files.read_text(metrics_path.parent / "config.yaml"), location="config.yaml")
        env = MCQEnv(verdict_question(config, metrics, view.terms.shots), VERDICTS[0], choices=list(VERDICTS))
        with agent.frozen():
            chosen = env.letter_of(agent.clone_for_episode().act(env.reset()))
        if chosen is None:
            raise UsageError("the agent named no verdict", location="analyst")
        prediction = VERDICTS[LETTERS.index(chosen)]
        summary = f"{type(agent).__name__} expects {prediction}: {mechanical_response.summary_1line}"[:400]
        verdict = "candidate" if prediction == "VERIFIED" else "ignore"
        return AnalystResponse.model_validate(
            mechanical_response.dump() | {"verdict": verdict, "summary_1line": summary}
        )

    return nominate


def _format_outcome(number: int, row: RoundRow) -> str:
    """Return one measured round in the format of `DesignTextEnv`.

    Without the baseline's error rate only the difference is known.
    """
    choices = space.params_of(row["dsl_config"]) if row["dsl_config"] else None
    shown = format_choices(choices or {})
    if row["status"] != "ok" or row["delta_ler"] is None:
        return f"{number}. {shown}: failed: {row['status']}"
    return f"{number}. {shown}: the error rate fell by {row['delta_ler']:+.3g} per shot"
