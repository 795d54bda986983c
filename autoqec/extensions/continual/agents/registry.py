"""Registry of agents by the `type` in their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import (
    AgentConfig,
    HistoryAgent,
    HistoryAgentConfig,
    LMAgent,
    LMAgentConfig,
    MemoryAgent,
    MemoryAgentConfig,
    MemorylessAgent,
    MemorylessAgentConfig,
    ReflexionAgent,
    ReflexionAgentConfig,
)
from autoqec.extensions.continual.agents.cheatsheet import (
    CodeRunner,
    DynamicCheatsheetAgent,
    DynamicCheatsheetAgentConfig,
)
from autoqec.extensions.continual.memory.modules import Memory
from autoqec.extensions.continual.named_class import load_named_class
from autoqec.extensions.language_models.clients.base import LanguageModel

AGENTS: dict[str, tuple[type[LMAgentConfig], type[LMAgent[Any]]]] = {
    "memoryless_agent": (MemorylessAgentConfig, MemorylessAgent),
    "memory_agent": (MemoryAgentConfig, MemoryAgent),
    "history_agent": (HistoryAgentConfig, HistoryAgent),
    "reflexion_agent": (ReflexionAgentConfig, ReflexionAgent),
    "dynamic_cheatsheet_agent": (DynamicCheatsheetAgentConfig, DynamicCheatsheetAgent),
}


def parse_agent_config(data: Mapping[str, Any], *, location: str = "agent") -> LMAgentConfig:
    """Parse the config of the agent named by `type`.

    Raises:
        UsageError: If the type is unknown or a field is invalid.
    """
    kind = data.get("type")
    if kind not in AGENTS:
        problem = f"unknown agent type {kind!r}" if kind else "the agent has no `type`"
        raise UsageError(problem, location=location, hint=f"one of {', '.join(AGENTS)}")
    try:
        return AGENTS[kind][0].model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location=location) from error


def agent_class(config: AgentConfig) -> type[LMAgent[Any]]:
    """Return the class of a config's agent; raises as `build_agent`."""
    if config.type not in AGENTS:
        raise UsageError(f"unknown agent type {config.type!r}", location="agent", hint=f"one of {', '.join(AGENTS)}")
    kind = AGENTS[config.type][1]
    if isinstance(config, LMAgentConfig) and config.agent_class is not None:
        return load_named_class(config.agent_class, kind, location="agent.agent_class")
    return kind


def build_agent(
    config: AgentConfig,
    lm: LanguageModel,
    *,
    memory: Memory | None = None,
    run_code: CodeRunner | None = None,
) -> LMAgent[Any]:
    """Build the agent of a config.

    Args:
        config: Config with a known `type`.
        lm: The language model to call.
        memory: Existing memory to continue with, for agents that have one.
        run_code: Executes a model's code, for agents that do so.

    Raises:
        UsageError: If the type is unknown, or `agent_class` is not a subclass of its class.
    """
    kind = agent_class(config)
    if issubclass(kind, DynamicCheatsheetAgent):
        return kind(config, lm, memory=memory, run_code=run_code)  # type: ignore[arg-type]
    if issubclass(kind, MemoryAgent):
        return kind(config, lm, memory=memory)
    return kind(config, lm)
