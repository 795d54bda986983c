"""The bridge: an agent that RunTime trained, with its memory, as the Ideator or the Analyst of a live run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoqec.continual.agents.memory_agent import LMAgent
from autoqec.continual.agents.registry import build_agent, parse_agent_config
from autoqec.continual.environments.design import ClauseLibrary, Facts, PredecoderDraft
from autoqec.continual.environments.design_text import observation, proposal, written
from autoqec.continual.environments.ledger import VERDICTS, verdict_question
from autoqec.continual.environments.mcq import LETTERS, MCQEnv
from autoqec.continual.runtime import checkpoints
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import InputError
from autoqec.ideators import analyst as mechanical
from autoqec.ideators import moves, space
from autoqec.ideators.moves import Move, State
from autoqec.llm.base import LanguageModel
from autoqec.store import files

SHOWN = 30  # measured rounds in the observation, the youngest


def load_agent(checkpoint: Path | str, lm: LanguageModel) -> LMAgent[Any]:
    """The agent of a checkpoint with its memory, in evaluation mode. Errors as `checkpoints.load`."""
    loaded = checkpoints.load(checkpoint)
    saved = json.loads((loaded.directory / "agent.json").read_text(encoding="utf-8"))
    agent = build_agent(parse_agent_config(saved["config"], where=str(loaded.directory / "agent.json")), lm)
    loaded.restore(agent)
    agent.eval()
    return agent


def ideator(
    checkpoint: Path | str, lm: LanguageModel, *, forgetful: bool = False
) -> Callable[[dict[str, Any]], IdeatorResponse]:
    """An ideator (view -> proposal) that asks the trained agent as `DesignTextEnv` did, and learns nothing more.

    What the agent says that can't be read, is not on offer, or was tried, raises InputError: the caller has the no-key
    ideator take the round. forgetful: the memoryless twin, to tell what the memory is worth.
    """
    agent = load_agent(checkpoint, lm)
    memory = getattr(agent, "memory", None)
    if forgetful and memory is not None:
        memory.clear()
    library = ClauseLibrary.standard()

    def propose(view: dict[str, Any]) -> IdeatorResponse:
        facts = Facts.of(EnvSpec.read(view["env"], where="view"))
        state = State.read(view)
        told = [_outcome(number, row) for number, row in enumerate(state.told[-SHOWN:], start=1)]
        twin = agent.clone_for_episode()
        with agent.frozen():
            action = twin.act(observation(facts, library, told, len(told) + 1))
        draft = proposal(action, library, PredecoderDraft(facts))
        name = type(agent).__name__
        config = state.held(draft.config())
        if config is None or not state.is_new(config):
            raise InputError("this design was tried already, or lets go of a pin", where="proposal")
        text = f"{name}, with what it learned on other codes, expects {written(draft.choices)} to err less"
        slug = f"memory-{config['type']}-{draft.signature[:6]}"
        return moves.reply(Move(slug, text, config), source=f"{name} {Path(checkpoint).name} {state.spoken}")

    return propose


def analyst(checkpoint: Path | str, lm: LanguageModel) -> Callable[[dict[str, Any]], AnalystResponse]:
    """An Analyst (view -> nomination) that asks the trained agent what the judge will say, as `LedgerQA` did.

    The figures and the advice are those of the Analyst without a model; only the nomination is the agent's. A reply
    that names no verdict raises InputError. A round that failed, or was not measured, is not asked about.
    """
    agent = load_agent(checkpoint, lm)

    def nominate(view: dict[str, Any]) -> AnalystResponse:
        said = mechanical.analyse(view)
        place = Path(view["metrics_path"])
        metrics = RoundMetrics.read(json.loads(place.read_bytes()), where=str(place))
        if metrics.status != "ok" or not metrics.val_shots:
            return said
        config = files.load_yaml(files.read_text(place.parent / "config.yaml"), where="config.yaml")
        env = MCQEnv(verdict_question(config, metrics), VERDICTS[0], choices=list(VERDICTS))
        with agent.frozen():
            chosen = env.letter_of(agent.clone_for_episode().act(env.reset()))
        if chosen is None:
            raise InputError("the agent named no verdict", where="analyst")
        expects = VERDICTS[LETTERS.index(chosen)]
        summary = f"{type(agent).__name__} expects {expects}: {said.summary_1line}"[:400]
        verdict = "candidate" if expects == "VERIFIED" else "ignore"
        return AnalystResponse.model_validate(said.dump() | {"verdict": verdict, "summary_1line": summary})

    return nominate


def _outcome(number: int, row: dict[str, Any]) -> str:
    """One measured round in the words of `DesignTextEnv`; without a plain error rate only the difference is known."""
    choices = space.params_of(row["dsl_config"]) if row["dsl_config"] else None
    shown = written(choices or {})
    if row["status"] != "ok" or row["delta_ler"] is None:
        return f"{number}. {shown}: failed: {row['status']}"
    return f"{number}. {shown}: the error rate fell by {row['delta_ler']:+.3g} a shot"
