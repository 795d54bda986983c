"""Views: the input of each role of a round, one frozen model per role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SkipValidation

from autoqec.contracts.base import Contract
from autoqec.contracts.round import ComposeMode


class IdeatorView(Contract):
    """Input of the Ideator: the run, derived from the history and the verified Pareto front only.

    Rows are read-only mappings; they are shared with the run's state and not copied.
    """

    run_id: str = Field(description="identifier of the run")
    seed: int = Field(description="seed of the run")
    env: dict[str, Any] = Field(description="the env, as EnvSpec dumps it")
    profile: dict[str, Any] = Field(description="the profile, as Profile dumps it")
    baseline_config: dict[str, Any] = Field(description="config of the baseline commit")
    inputs: str = Field(default="other_sector", description="what a network of this env can read")
    gate_available: bool = Field(default=False, description="whether a config of this env can have a `gate`")
    pins: dict[str, Any] = Field(default={}, description="keys that the run keeps fixed, with their values")
    history: SkipValidation[tuple[dict[str, Any], ...]] = Field(description="recorded rounds, oldest first")
    pending: SkipValidation[tuple[dict[str, Any], ...]] = Field(default=(), description="planned rounds without a row")
    pareto: tuple[dict[str, Any], ...] = Field(default=(), description="the verified front")
    pareto_preview: tuple[dict[str, Any], ...] = Field(default=(), description="the part of it that is shown")
    sampler: Any = Field(default=None, description="state of the search, if a model works beside it")
    notes: Any = Field(default=None, description="notes from earlier runs")


class CoderView(Contract):
    """What the Coder turns into edits."""

    hypothesis: str = Field(description="what the Ideator expects to help")
    slug: str = Field(description="short name for the branch")
    compose_mode: ComposeMode | None = Field(
        default=None, description="of a composition: merge only, or merge and edit"
    )
    proposal: dict[str, Any] = Field(description="the proposed config")
    modules: dict[str, str] = Field(
        default={}, description="name -> text of the editable modules; empty if only the config may change"
    )


class AnalystView(Contract):
    """The measured round that the Analyst may nominate."""

    run_id: str = Field(default="", description="identifier of the run")
    hypothesis: str = Field(default="", description="what the Ideator expects to help")
    metrics_path: Path = Field(description="absolute path of metrics.json")

    @property
    def round_dir(self) -> Path:
        """Directory of the round."""
        return self.metrics_path.parent
