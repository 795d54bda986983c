"""VerifyReport: what the judge found on shots nobody could have seen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.timing import UtcTime

Verdict = Literal["VERIFIED", "SUSPICIOUS", "FAILED"]
CompositionVerdict = Literal["synergy", "additive", "interference"]
StoppedBy = Literal["evidence", "futility", "budget", "harm", "guard"]


class PairedCounts(Contract):
    """Two decoders on the same shots. fixed: reference wrong, candidate right; broken: the reverse."""

    shots: int
    errors_reference: int
    errors_candidate: int
    fixed: int
    broken: int


class PairedEffect(Contract):
    """delta = (fixed - broken) / shots, per shot; relative = delta / LER(reference). 95% intervals, paired."""

    reference: str
    p: float | None
    counts: PairedCounts
    delta: float
    delta_low: float
    delta_high: float
    relative: float | None
    relative_low: float | None
    relative_high: float | None


class SequentialTest(Contract):
    """One-sided test of P(fixed | discordant) <= 1/2 by a Beta-mixture e-process."""

    counts: PairedCounts
    e_value: float
    e_value_harm: float
    threshold: float = Field(description="1 / alpha_t; reaching it rejects the null")
    alpha_t: float
    attempt_index: int = Field(ge=1, description="position in the run's stream of attempts (e-LOND)")
    discoveries_before: int
    stopped_by: StoppedBy


class Rate(Contract):
    """errors out of shots with a 95% Clopper-Pearson interval, per shot; and the point estimate per round."""

    shots: int
    errors: int
    rate: float
    low: float
    high: float
    per_round: float


class BaselineResult(Contract):
    name: str
    rate: Rate
    against: PairedEffect = Field(description="the candidate against this member on the same shots")
    beats: bool = Field(description="lower bound of delta above 0")


class Guard(Contract):
    name: str
    passed: bool
    evidence: str


class Cost(Contract):
    n_params: int
    flops_per_syndrome: int
    claimed_n_params: int | None
    claimed_flops_per_syndrome: int | None
    counted_by: Literal["baseline compiler", "candidate sandbox"]
    candidate_us_per_shot: float


class CompositionParent(Contract):
    round: int
    artifact_sha256: str
    effect: PairedEffect = Field(description="this parent against the plain backend")
    against: PairedEffect = Field(description="the child against this parent, on the same shots")
    beaten: bool = Field(description="lower bound of `against.delta` above 0")


class Composition(Contract):
    """Child, parents and plain backend on one bundle of shots. interaction: the child's gain less the sum of its
    parents' gains, per shot, with a 95% interval."""

    verdict: CompositionVerdict
    evidence: str
    bundle_id: str
    chunk_digests: tuple[str, ...]
    effect: PairedEffect = Field(description="the child against the plain backend")
    parents: tuple[CompositionParent, ...]
    interaction: float
    interaction_low: float
    interaction_high: float


class VerifyReport(Contract):
    schema_version: Literal[1] = 1
    run_id: str
    round: int
    round_attempt_id: str | None
    branch: str | None
    commit_sha: str | None
    env_name: str
    env_yaml_sha256: str
    artifact_sha256: str
    verdict: Verdict
    reasons: tuple[str, ...]
    claim: str
    backend: str
    decoder_rate: Rate | None
    effect: PairedEffect | None = Field(description="second draw, against the plain backend, at the target p")
    panel: tuple[BaselineResult, ...] = ()
    points: tuple[PairedEffect, ...] = Field(default=(), description="the env's other p, against each panel member")
    test: SequentialTest | None
    guards: tuple[Guard, ...]
    cost: Cost | None
    composition: Composition | None = Field(default=None, description="only of a composition of verified parents")
    bundle_id: str | None
    seeds_commitment: str = Field(description="SHA-256 of the run's secret")
    chunk_digests: tuple[str, ...] = ()
    sandbox: str
    versions: dict[str, str]
    not_tested: tuple[str, ...]
    judge_wallclock_s: float
    finished_at: UtcTime | None = Field(default=None, description="when the verification ended (UTC)")
