"""The bridge: an agent that RunTime trained, with its memory, as the Ideator or the Analyst of a live run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoqec.continual.agents.memory_agent import LMAgent
from autoqec.continual.agents.registry import build_agent, parse_agent_config
from autoqec.continual.environments.design import ActionSpace, EnvFeatures, PredecoderDraft
from autoqec.continual.environments.design_text import format_choices, format_observation, parse_proposal
from autoqec.continual.environments.ledger import VERDICTS, verdict_question
from autoqec.continual.environments.mcq import LETTERS, MCQEnv
from autoqec.continual.runtime import checkpoints
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import UsageError
from autoqec.ideators import analyst as mechanical
from autoqec.ideators import moves, space
from autoqec.ideators.moves import Move, SearchState
from autoqec.llm.base import LanguageModel
from autoqec.store import files

MAX_SHOWN = 30  # measured rounds in the observation, the youngest


def load_agent(checkpoint: Path | str, lm: LanguageModel) -> LMAgent[Any]:
    """The agent of a checkpoint with its memory, in evaluation mode. Errors as `checkpoints.load`."""
    loaded = checkpoints.load(checkpoint)
    saved = json.loads((loaded.directory / "agent.json").read_text(encoding="utf-8"))
    agent = build_agent(parse_agent_config(saved["config"], location=str(loaded.directory / "agent.json")), lm)
    loaded.restore(agent)
    agent.eval()
    return agent


def ideator(
    checkpoint: Path | str, lm: LanguageModel, *, without_memory: bool = False
) -> Callable[[dict[str, Any]], IdeatorResponse]:
    """An ideator (view -> proposal) that asks the trained agent as `DesignTextEnv` did, and learns nothing more.

    What the agent says that can't be read, is not on offer, or was tried, raises UsageError: the caller has the no-key
    ideator take the round. forgetful: the memoryless twin, to tell what the memory is worth.
    """
    agent = load_agent(checkpoint, lm)
    memory = getattr(agent, "memory", None)
    if without_memory and memory is not None:
        memory.clear()
    action_space = ActionSpace.standard()

    def propose(view: dict[str, Any]) -> IdeatorResponse:
        features = EnvFeatures.of(EnvSpec.read(view["env"], location="view"))
        state = SearchState.read(view)
        previous = [_format_outcome(number, row) for number, row in enumerate(state.observed[-MAX_SHOWN:], start=1)]
        clone = agent.clone_for_episode()
        with agent.frozen():
            action = clone.act(format_observation(features, action_space, previous, len(previous) + 1))
        draft = parse_proposal(action, action_space, PredecoderDraft(features))
        name = type(agent).__name__
        config = state.with_pins(draft.config())
        if config is None or not state.is_new(config):
            raise UsageError("this design was tried already, or lets go of a pin", location="proposal")
        text = f"{name}, with what it learned on other codes, expects {format_choices(draft.choices)} to err less"
        slug = f"memory-{config['type']}-{draft.signature[:6]}"
        return moves.to_response(Move(slug, text, config), source=f"{name} {Path(checkpoint).name} {state.n_proposed}")

    return propose


def analyst(checkpoint: Path | str, lm: LanguageModel) -> Callable[[dict[str, Any]], AnalystResponse]:
    """An Analyst (view -> nomination) that asks the trained agent what the judge will say, as `LedgerQA` did.

    The figures and the advice are those of the Analyst without a model; only the nomination is the agent's. A reply
    that names no verdict raises UsageError. A round that failed, or was not measured, is not asked about.
    """
    agent = load_agent(checkpoint, lm)

    def nominate(view: dict[str, Any]) -> AnalystResponse:
        mechanical_response = mechanical.analyse(view)
        metrics_path = Path(view["metrics_path"])
        metrics = RoundMetrics.read(json.loads(metrics_path.read_bytes()), location=str(metrics_path))
        if metrics.status != "ok" or not metrics.val_shots:
            return mechanical_response
        config = files.load_yaml(files.read_text(metrics_path.parent / "config.yaml"), location="config.yaml")
        env = MCQEnv(verdict_question(config, metrics), VERDICTS[0], choices=list(VERDICTS))
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


def _format_outcome(number: int, row: dict[str, Any]) -> str:
    """One measured round in the words of `DesignTextEnv`; without a plain error rate only the difference is known."""
    choices = space.params_of(row["dsl_config"]) if row["dsl_config"] else None
    shown = format_choices(choices or {})
    if row["status"] != "ok" or row["delta_ler"] is None:
        return f"{number}. {shown}: failed: {row['status']}"
    return f"{number}. {shown}: the error rate fell by {row['delta_ler']:+.3g} a shot"
