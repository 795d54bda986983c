"""Views: the input of each role of a round, one frozen model per role."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SkipValidation
from typing_extensions import TypedDict  # pydantic refuses typing.TypedDict before Python 3.12

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.pareto import ParetoEntry
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import Composed, ComposeMode, ForkFrom, RoundStatus
from autoqec.contracts.verdict import ComparisonTerms, Verdict, comparison_terms
from autoqec.errors import UsageError


class RoundRow(TypedDict):
    """What roles see of one round; a round without a row has None for what is not known yet.

    Attributes:
        forkable: Whether later rounds can fork from it.
    """

    round: int
    status: RoundStatus | None
    status_reason: str | None
    hypothesis: str
    fork_from: ForkFrom
    fork_from_canonical: str
    compose_mode: ComposeMode | None
    branch: str | None
    dsl_config: dict[str, Any] | None
    delta_ler: float | None
    delta_vs_parent: float | None
    val_shots: int | None
    flops_per_syndrome: int | None
    n_params: int | None
    verdict: Literal["candidate", "ignore"] | None
    verify_verdict: Verdict | None
    verify_reasons: Sequence[str] | None
    delta_vs_baseline_holdout: float | None
    delta_holdout_low: float | None
    delta_holdout_high: float | None
    beats_panel: dict[str, bool] | None
    summary_1line: str | None
    next_hypothesis_seed: str | None
    forkable: bool


class NextTest(Contract):
    """The verifier's next test: later tests of a run need more evidence."""

    index: int = Field(ge=1, description="its position in the run's stream of tests")
    threshold: float = Field(gt=0, description="the e-value that it needs for a discovery")
    first_threshold: float = Field(gt=0, description="what the first test of the run needed")


class IdeatorView(Contract):
    """Input of the Ideator: the run, derived from the history and the verified Pareto front only.

    Rows are read-only mappings; they are shared with the run's state and not copied.
    """

    run_id: str = Field(description="identifier of the run")
    seed: int = Field(description="seed of the run")
    env: EnvSpec | None = Field(description="the env; None for a recorded table of configs, which has no code")
    profile: Profile | None = Field(description="the profile; None for such a table")
    baseline_config: dict[str, Any] = Field(description="config of the baseline commit")
    inputs: str = Field(default="other_sector", description="what a network of this env can read")
    gate_available: bool = Field(default=False, description="whether a config of this env can have a `gate`")
    pins: dict[str, Any] = Field(default={}, description="keys that the run keeps fixed, with their values")
    history: SkipValidation[tuple[RoundRow, ...]] = Field(description="recorded rounds, oldest first")
    pending: SkipValidation[tuple[RoundRow, ...]] = Field(default=(), description="planned rounds without a row")
    pareto: tuple[ParetoEntry, ...] = Field(default=(), description="the verified front")
    pareto_preview: tuple[ParetoEntry, ...] = Field(default=(), description="the part of it that is shown")
    next_test: NextTest | None = optional("the verifier's next test; None if there is none")
    sampler: Any = optional("state of the search, if a model works beside it")
    notes: Any = optional("notes from earlier runs")

    def require_env(self) -> EnvSpec:
        """Return the env. UsageError for a recorded table of configs."""
        if self.env is None:
            raise UsageError("a recorded table of configs has no env", hint="name its env with --env")
        return self.env

    @property
    def terms(self) -> ComparisonTerms:
        """How text names the verifier's shots and what a gain is over."""
        return comparison_terms(sealed=self.env is not None and self.env.code.own_shots)

    @property
    def finetunes(self) -> bool:
        """Whether the inner decoder of the env can be fine-tuned through."""
        return self.env is None or self.env.backend == "mwpm"


class CoderView(Contract):
    """What the Coder turns into edits."""

    hypothesis: str = Field(description="what the Ideator expects to help")
    slug: str = Field(description="short name for the branch")
    compose_mode: Composed = None
    proposal: dict[str, Any] = Field(description="the proposed config")
    fork_from: tuple[str, ...] = Field(default=(), description="branches of the parents; empty for the baseline")
    code_change: str = Field(default="", description="what the Ideator wants to change in the code")
    modules: dict[str, str] = Field(
        default={}, description="name -> text of the editable modules; empty if only the config may change"
    )


class AnalystView(Contract):
    """The measured round that the Analyst may nominate."""

    run_id: str = Field(default="", description="identifier of the run")
    hypothesis: str = Field(default="", description="what the Ideator expects to help")
    metrics_path: Path = Field(description="absolute path of metrics.json")
    sealed_shots: bool = Field(default=False, description="rounds are verified on sealed blocks of recorded shots")

    @property
    def terms(self) -> ComparisonTerms:
        """How text names the verifier's shots and what a gain is over."""
        return comparison_terms(sealed=self.sealed_shots)

    @property
    def round_dir(self) -> Path:
        """Directory of the round."""
        return self.metrics_path.parent
