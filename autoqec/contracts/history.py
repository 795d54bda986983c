"""Lines of history.jsonl and attempts.jsonl, and run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.names import SHA1, SHA256
from autoqec.contracts.round import (
    Composed,
    ForkFrom,
    RoundMetrics,
    Timing,
    UtcTime,
    canonical_fork,
)
from autoqec.contracts.run_spec import RunSpec
from autoqec.contracts.verdict import (
    ComparisonTerms,
    CompositionVerdict,
    CountedBy,
    MemberResult,
    Verdict,
    comparison_terms,
)


class SpecChange(Contract):
    """Options that a later start of the run replaced, with their new values."""

    at: UtcTime = Field(description="when the run was resumed with other options")
    changed: dict[str, Any] = Field(description="option -> new value")


class RunInfo(RunSpec):
    """run.json: the specification of the run, and what its start found; only options change, at a resume."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    run_id: str = Field(description="identifier and directory name of the run")
    env_name: str = Field(description="`name` of the env")
    env_yaml_sha256: str = Field(pattern=SHA256, description="hash of the frozen env file")
    baseline_sha: str = Field(pattern=SHA1, description="commit that rounds fork from")
    baseline_ref: str | None = Field(description="branch that was checked out; null: detached HEAD")
    sealed_shots: bool = Field(default=False, description="rounds are verified on sealed blocks of recorded shots")
    code_sha256: str = Field(pattern=SHA256, description="code that can change a result")
    package_sha256: str = Field(pattern=SHA256, description="all code of the package")
    secret_sha256: str = Field(pattern=SHA256, description="commitment to the verifier's secret")
    versions: dict[str, str] = Field(description="package -> version")
    command_line: tuple[str, ...] = Field(description="arguments of the process that started the run")
    changes: tuple[SpecChange, ...] = Field(default=(), description="options that a resume replaced")

    def spec(self) -> RunSpec:
        """Return the specification alone."""
        return RunSpec.model_construct(**self.fields())


class _AttemptLine(Contract):
    round_attempt_id: str = Field(description="identifier of the attempt")
    round: int = Field(ge=1, description="number of the round")
    at: UtcTime = Field(description="when the line was written")


class Begun(_AttemptLine):
    """Line written before any paid call."""

    kind: Literal["begun"] = Field(default="begun", description="selects this line")


class Planned(_AttemptLine):
    """Line written before any git call: the complete plan of the round."""

    kind: Literal["planned"] = Field(default="planned", description="selects this line")
    branch: str = Field(description="branch that will be created")
    base_sha: str = Field(pattern=SHA1, description="commit that the branch starts at")
    fork_from: ForkFrom
    compose_mode: Composed
    ideator: IdeatorResponse = Field(description="the Ideator's response")
    dsl_config: dict[str, Any] = Field(description="config of the predecoder")


class Nominated(_AttemptLine):
    """Line written after the Runner and before the verifier."""

    kind: Literal["nominated"] = Field(default="nominated", description="selects this line")
    analyst: AnalystResponse = Field(description="the Analyst's response")


class AlphaSpent(_AttemptLine):
    """Line written before the verifier samples its first shot: from then on the test counts in the error budget."""

    kind: Literal["charged"] = Field(default="charged", description="selects this line")
    artifact_sha256: str = Field(pattern=SHA256, description="hash of the artifact under test")
    attempt_index: int = Field(ge=1, description="position of the test in the run's stream (e-LOND)")


AttemptLine = Annotated[Begun | Planned | Nominated | AlphaSpent, Field(discriminator="kind")]
ATTEMPT_LINE: TypeAdapter[Begun | Planned | Nominated | AlphaSpent] = TypeAdapter(AttemptLine)


@dataclass(frozen=True)
class Estimate:
    """A measured value with its 95% interval; None: the interval is not known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Nomination:
    """The Analyst's response as the row holds it."""

    verdict: Literal["candidate", "ignore"]
    summary_1line: str
    analysis: str
    next_hypothesis_seed: str


@dataclass(frozen=True)
class Verification:
    """The verifier's verdict and what it measured on fresh shots.

    Attributes:
        gain: Difference to the inner decoder's logical error rate, per shot; None if it was not measured.
        relative_gain: The gain as a share of that rate.
        simultaneous: Interval of the gain for all attempts of the run together, as (low, high).
        shots: Shots of the second draw.
        baselines: Baseline -> whether the candidate is better with 95% confidence.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    gain: Estimate | None
    relative_gain: Estimate | None
    simultaneous: tuple[float, float] | None
    shots: int | None
    baselines: Mapping[str, bool]
    composition: CompositionVerdict | None

    @property
    def on_sealed_shots(self) -> bool:
        """Whether the shots were recorded: only there is matching with an estimated model a baseline."""
        from autoqec.contracts.env import ESTIMATED  # with contracts that most commands do not need here

        return any(name in ESTIMATED for name in self.baselines)

    @property
    def terms(self) -> ComparisonTerms:
        """How text names these shots and what the gain is over."""
        return comparison_terms(sealed=self.on_sealed_shots)

    @property
    def unbeaten(self) -> list[str]:
        """Baselines over which no gain was shown."""
        return [name for name, beats in self.baselines.items() if not beats]


class HistoryRow(RoundMetrics):
    """One line of history.jsonl: RoundMetrics and what the run knows about the round.

    Exactly one of `round_attempt_id` (a real attempt) and `reconcile_id` (written by recovery) is set,
    but for a quarantine row, which is a real attempt that recovery closed: it keeps the attempt's id.
    `refers_to_attempt` marks a follow-up row to an earlier one.
    """

    round: int = Field(ge=1, description="number of the round")
    hypothesis: str = Field(description="what the Ideator expected to help")
    verdict: Literal["candidate", "ignore"] = Field(description="the Analyst's nomination")
    round_attempt_id: str | None = optional("identifier of a real attempt")
    reconcile_id: str | None = optional("identifier of a row written by recovery")
    refers_to_attempt: str | None = optional("earlier attempt that this follow-up row is about")
    branch: str | None = optional("branch of the round; null if there is none")
    commit_sha: str | None = Field(default=None, pattern=SHA1, description="commit of the code that was measured")
    fork_from: ForkFrom = "baseline"
    fork_from_canonical: str = Field(default="baseline", description="`fork_from`, sorted and joined by `|`")
    fork_from_ordered: tuple[str, ...] | None = optional("parents of a composition in merge order; else null")
    compose_mode: Composed = None
    dsl_config: dict[str, Any] | None = optional("config of the predecoder")
    dsl_config_sha256: str | None = optional("hash of the config")
    ideator_source: str = Field(default="", description="which ideator proposed the round, and from which state")
    summary_1line: str = Field(default="", description="the Analyst's summary")
    analysis: str = Field(default="", description="the Analyst's analysis")
    next_hypothesis_seed: str = Field(default="", description="the Analyst's advice for the next rounds")
    verify_verdict: Verdict | None = optional("the verifier's verdict; null if the round was not verified")
    verify_reasons: tuple[str, ...] = Field(default=(), description="reasons of the verdict")
    delta_vs_baseline_holdout: float | None = optional(
        "gain per shot on the verifier's shots: over the inner decoder alone, or on recorded "
        "shots over the strongest baseline"
    )
    delta_holdout_low: float | None = optional("lower end of its 95% interval")
    delta_holdout_high: float | None = optional("upper end of its 95% interval")
    delta_simultaneous_low: float | None = optional(
        "lower end of the interval that holds for all attempts of the run together (95%)"
    )
    delta_simultaneous_high: float | None = optional("upper end of that interval")
    relative_holdout: float | None = optional("that gain as a share of the logical error rate of the same reference")
    relative_holdout_low: float | None = optional("lower end of its 95% interval")
    relative_holdout_high: float | None = optional("upper end of its 95% interval")
    holdout_shots: int | None = optional("shots of the verifier's second draw")
    paired_eval_bundle_id: str | None = optional("identifier of the verifier's shots")
    beats_panel: dict[str, bool] | None = optional("baseline -> whether the candidate is better with 95% confidence")
    holdout_members: tuple[MemberResult, ...] | None = optional(
        "of a family: every circuit at every p on fresh shots, as in the report; else null"
    )
    composition_verdict: CompositionVerdict | None = optional(
        "of a verified composition: gain compared with its parents'"
    )
    judge_flops_per_syndrome: int | None = optional("floating-point operations per shot, counted by the verifier")
    judge_n_params: int | None = optional("parameters, counted by the verifier")
    single_shot_failure: str | None = optional(
        "why the verifier could not decode single shots although batches were decoded"
    )
    cost_counted_by: CountedBy | None = optional("code that counted; `candidate sandbox`: the counts are lower bounds")
    sandbox: str | None = optional("sandbox backend of the candidate process")
    conflicting_files: tuple[str, ...] | None = optional("of a compose conflict: paths that could not be merged")
    started_at: UtcTime | None = optional("when the attempt began (UTC)")
    finished_at: UtcTime | None = optional("when its last step ended (UTC)")
    proposal_wallclock_s: float | None = optional("duration until Ideator and Coder had answered, in seconds")
    setup_wallclock_s: float | None = optional("branch, and waiting for a free slot")
    verify_wallclock_s: float | None = optional("duration of the verification, in seconds")

    @model_validator(mode="after")
    def _identity(self) -> HistoryRow:
        if (self.round_attempt_id is None) == (self.reconcile_id is None):
            raise ValueError("a row has exactly one of `round_attempt_id` and `reconcile_id`")
        if self.fork_from_canonical != canonical_fork(self.fork_from):
            raise ValueError("`fork_from_canonical` does not match `fork_from`")
        if self.status == "compose_conflict" and (self.branch or self.commit_sha):
            raise ValueError("a compose conflict leaves no branch and no commit")
        if self.verify_verdict == "VERIFIED" and not (self.branch and self.commit_sha):
            raise ValueError("a VERIFIED row names its branch and commit")
        return self

    @property
    def verification(self) -> Verification | None:
        """The part of the row that the verifier gave; None if the round was not verified."""
        if self.verify_verdict is None:
            return None
        low, high = self.delta_simultaneous_low, self.delta_simultaneous_high
        return Verification(
            verdict=self.verify_verdict,
            reasons=self.verify_reasons,
            gain=_estimate(self.delta_vs_baseline_holdout, self.delta_holdout_low, self.delta_holdout_high),
            relative_gain=_estimate(self.relative_holdout, self.relative_holdout_low, self.relative_holdout_high),
            simultaneous=None if low is None or high is None else (low, high),
            shots=self.holdout_shots,
            baselines=self.beats_panel or {},
            composition=self.composition_verdict,
        )

    @property
    def nomination(self) -> Nomination:
        """The part of the row that the Analyst gave."""
        return Nomination(self.verdict, self.summary_1line, self.analysis, self.next_hypothesis_seed)

    @property
    def timing(self) -> Timing:
        """When the round ran and how long each phase took."""
        return Timing(**{name: getattr(self, name) for name in Timing.model_fields})


def _estimate(value: float | None, low: float | None, high: float | None) -> Estimate | None:
    return None if value is None else Estimate(value, low, high)
