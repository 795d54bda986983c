"""Lines of history.jsonl and attempts.jsonl, and run.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.profiles import ProfileName
from autoqec.contracts.provenance import SHA1, SHA256
from autoqec.contracts.round import ComposeMode, ForkFrom, RoundMetrics, canonical_fork
from autoqec.contracts.settings import RunSettings, SettingsChange
from autoqec.contracts.timing import Timing, UtcTime
from autoqec.contracts.verdict import CompositionVerdict, Verdict


class RunInfo(Contract):
    """run.json: written at the start; only `settings` and `settings_changes` change, when a resume names others."""

    schema_version: Literal[1] = 1
    run_id: str
    env_name: str
    env_yaml_sha256: str = Field(pattern=SHA256)
    baseline_sha: str = Field(pattern=SHA1)
    baseline_ref: str | None = Field(description="branch that was checked out; null: detached HEAD")
    profile: ProfileName
    seed: int
    ideator: str
    pins: dict[str, Any] = Field(default={}, description="dotted DSL key -> value that every proposal of the run holds")
    code_sha256: str = Field(pattern=SHA256, description="code that can change a result; the whole package before")
    package_sha256: str | None = Field(
        default=None, pattern=SHA256, description="all code of the package; null in runs of earlier versions"
    )
    secret_sha256: str = Field(pattern=SHA256, description="commitment to the judge's secret")
    versions: dict[str, str]
    command_line: tuple[str, ...]
    settings: RunSettings | None = Field(
        default=None, description="inherited by `--resume`; null in runs of earlier versions"
    )
    settings_changes: tuple[SettingsChange, ...] = Field(default=(), description="settings that a resume replaced")


class Begun(Contract):
    """Before any paid call."""

    kind: Literal["begun"] = "begun"
    round_attempt_id: str
    round: int = Field(ge=1)
    at: UtcTime | None = Field(default=None, description="when the line was written; null in earlier versions")


class Planned(Contract):
    """Before any git call: everything the round was meant to be."""

    kind: Literal["planned"] = "planned"
    round_attempt_id: str
    round: int = Field(ge=1)
    branch: str
    base_sha: str = Field(pattern=SHA1)
    fork_from: ForkFrom
    compose_mode: ComposeMode | None
    ideator: IdeatorResponse
    dsl_config: dict[str, Any]
    at: UtcTime | None = Field(default=None, description="when the line was written; null in earlier versions")


class Nominated(Contract):
    """After the Runner, before the judge."""

    kind: Literal["nominated"] = "nominated"
    round_attempt_id: str
    round: int = Field(ge=1)
    analyst: AnalystResponse
    at: UtcTime | None = Field(default=None, description="when the line was written; null in earlier versions")


class AlphaSpent(Contract):
    """Before the judge draws its first shot: the attempt counts, whatever becomes of it."""

    kind: Literal["charged"] = "charged"
    round_attempt_id: str
    round: int = Field(ge=1)
    artifact_sha256: str = Field(pattern=SHA256)
    attempt_index: int = Field(ge=1)
    at: UtcTime | None = Field(default=None, description="when the line was written; null in earlier versions")


AttemptLine = Annotated[Begun | Planned | Nominated | AlphaSpent, Field(discriminator="kind")]
ATTEMPT_LINE: TypeAdapter[Begun | Planned | Nominated | AlphaSpent] = TypeAdapter(AttemptLine)


class HistoryRow(RoundMetrics):
    """One line of history.jsonl: RoundMetrics and what the run knows about the round.

    Exactly one of `round_attempt_id` (a real attempt) and `reconcile_id` (written by recovery) is set,
    but for a quarantine row, which is a real attempt that recovery closed: it keeps the attempt's id.
    `refers_to_attempt` marks a follow-up row to an earlier one.
    """

    round: int = Field(ge=1)
    hypothesis: str
    verdict: Literal["candidate", "ignore"]
    round_attempt_id: str | None = None
    reconcile_id: str | None = None
    refers_to_attempt: str | None = None
    branch: str | None = None
    commit_sha: str | None = Field(default=None, pattern=SHA1)
    fork_from: ForkFrom = "baseline"
    fork_from_canonical: str = "baseline"
    fork_from_ordered: tuple[str, ...] | None = None
    compose_mode: ComposeMode | None = None
    dsl_config: dict[str, Any] | None = None
    dsl_config_sha256: str | None = None
    ideator_source: str = ""
    summary_1line: str = ""
    analysis: str = ""
    next_hypothesis_seed: str = ""
    verify_verdict: Verdict | None = None
    verify_reasons: tuple[str, ...] = ()
    delta_vs_baseline_holdout: float | None = None
    delta_holdout_low: float | None = None
    delta_holdout_high: float | None = None
    relative_holdout: float | None = None
    relative_holdout_low: float | None = None
    relative_holdout_high: float | None = None
    holdout_shots: int | None = None
    paired_eval_bundle_id: str | None = None
    beats_panel: dict[str, bool] | None = None
    composition_verdict: CompositionVerdict | None = None
    composition_bundle_id: str | None = None
    judge_flops_per_syndrome: int | None = None
    judge_n_params: int | None = None
    sandbox: str | None = None
    conflicting_files: tuple[str, ...] | None = None
    started_at: UtcTime | None = Field(default=None, description="when the attempt began (UTC)")
    finished_at: UtcTime | None = Field(default=None, description="when its last step ended (UTC)")
    proposal_wallclock_s: float | None = None
    setup_wallclock_s: float | None = Field(default=None, description="branch, and waiting for a free slot")
    verify_wallclock_s: float | None = None

    @model_validator(mode="after")
    def _identity(self) -> HistoryRow:
        if (self.round_attempt_id is None) == (self.reconcile_id is None):
            raise ValueError("a row has either `round_attempt_id` or `reconcile_id`, never both, never neither")
        if self.fork_from_canonical != canonical_fork(self.fork_from):
            raise ValueError("`fork_from_canonical` does not spell `fork_from`")
        if self.status == "compose_conflict" and (self.branch or self.commit_sha):
            raise ValueError("a compose conflict leaves no branch and no commit")
        if self.verify_verdict == "VERIFIED" and not (self.branch and self.commit_sha):
            raise ValueError("a VERIFIED row names its branch and commit")
        return self

    @property
    def timing(self) -> Timing:
        """When the round ran and how long each phase took."""
        return Timing(**{name: getattr(self, name) for name in Timing.model_fields})
