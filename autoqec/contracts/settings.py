"""Settings of a run, which `--resume` inherits from run.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field

from autoqec.contracts.base import Contract
from autoqec.contracts.round import UtcTime


class ModelSettings(Contract):
    """The language model of one role, with everything that the environment or a default decided resolved."""

    backend: str = Field(description="client that asks the model: anthropic, openai, gemini, claude, codex, scripted")
    model: str | None = Field(default=None, description="null: the default model of a command-line client")
    base_url: str | None = Field(default=None, description="endpoint of the API; null: the provider's")
    effort: str | None = Field(default=None, description="reasoning effort; null: the model's default")
    price: dict[str, float] | None = Field(
        default=None,
        description="US dollars per million tokens as `input`, `output` and `cache_read`; null: the price list's",
    )


class RunSettings(Contract):
    """Options of `autoqec run`, apart from those that never change (env, profile, seed, ideator, pins).

    Paths below the workspace are relative to it.
    """

    models: dict[str, ModelSettings] = Field(default={}, description="language model of each role that asks one")
    rounds: int | None = Field(default=None, description="value of `--rounds`")
    budget: dict[str, float] = Field(default={}, description="limits of `--budget`, including usd and tokens")
    open_modules: bool = Field(
        default=False,
        validation_alias=AliasChoices("open_modules", "open_surface"),  # earlier versions wrote open_surface
        description="the Coder may edit code",
    )
    cassette: bool = Field(default=False, description="answers are played from the run's cassette")
    replay_of: str | None = Field(default=None, description="run whose proposals are repeated")
    ideator_memory: str | None = Field(default=None, description="checkpoint of the agent that proposes")
    analyst_memory: str | None = Field(default=None, description="checkpoint of the agent that nominates")
    memory: str | None = Field(default=None, description="memory file shared by runs")
    executor: Literal["local", "slurm"] = Field(default="local", description="where rounds are measured")
    slurm: tuple[str, ...] = Field(default=(), description="job options, each `KEY=VALUE`")
    container: str | None = Field(default=None, description="image file in which jobs run")
    detach: bool = Field(default=False, description="the run executes in jobs of its own")
    detach_slurm: tuple[str, ...] = Field(default=(), description="options of these jobs, each `KEY=VALUE`")
    parallel: int = Field(default=1, ge=1, description="rounds measured at once")
    threads: int = Field(default=1, ge=1, description="threads shared by the rounds measured at once")


class SettingsChange(Contract):
    """Settings that a later start of the run replaced, with their new values."""

    at: UtcTime = Field(description="when the run was resumed with other settings")
    changed: dict[str, Any] = Field(description="setting -> new value")
