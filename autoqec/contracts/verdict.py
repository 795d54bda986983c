"""VerifyReport: the verdict on one artifact, with its evidence, and the terms in which text speaks of it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from pydantic import Field

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.round import PairedCounts, UtcTime


class ComparisonTerms(NamedTuple):
    """How text names the shots and the reference of a verification.

    Attributes:
        shots: "fresh shots" or "sealed shots".
        reference: What the gain is over.
    """

    shots: str
    reference: str


FRESH = ComparisonTerms("fresh shots", "baseline decoder")
SEALED = ComparisonTerms("sealed shots", "strongest baseline")


def comparison_terms(*, sealed: bool) -> ComparisonTerms:
    """Return the terms for sealed blocks of recorded shots, or for shots that are sampled for the verification."""
    return SEALED if sealed else FRESH


Verdict = Literal["VERIFIED", "INCONCLUSIVE", "SUSPICIOUS", "FAILED"]
CompositionVerdict = Literal["synergy", "additive", "interference"]
StoppedBy = Literal["evidence", "futility", "budget", "harm", "guard"]
CountedBy = Literal["baseline compiler", "candidate sandbox"]


class PairedEffect(Contract):
    """Difference of two logical error rates on the same shots; positive is better for the candidate."""

    reference: str = Field(description="decoder that the candidate is compared with")
    p: float | None = Field(description="physical error rate; null if the noise comes with the file")
    counts: PairedCounts = Field(description="paired outcomes")
    delta: float = Field(description="(fixed - broken) / shots")
    delta_low: float = Field(description="lower end of its 95% interval")
    delta_high: float = Field(description="upper end of its 95% interval")
    relative: float | None = Field(
        description="delta divided by the reference's logical error rate; null if it made no error"
    )
    relative_low: float | None = Field(description="lower end of its 95% interval")
    relative_high: float | None = Field(description="upper end of its 95% interval")


class SequentialTest(Contract):
    """One-sided e-process test of the null hypothesis that the relative gain is at most `min_relative_gain`."""

    counts: PairedCounts = Field(description="paired outcomes of the test")
    e_value: float = Field(description="evidence that the candidate is better")
    e_value_harm: float = Field(description="evidence that the candidate is worse")
    threshold: float = Field(description="1 / alpha_t; reaching it rejects the null")
    alpha_t: float = Field(description="level of this test")
    attempt_index: int = Field(ge=1, description="position in the run's stream of attempts (e-LOND)")
    discoveries_before: int = Field(description="rejections earlier in the stream")
    stopped_by: StoppedBy = Field(description="why the test ended")
    min_relative_gain: float = Field(default=0.0, description="relative gain under the null hypothesis")


class Rate(Contract):
    """Logical error rate per shot with a 95% Clopper-Pearson interval."""

    shots: int = Field(description="shots decoded")
    errors: int = Field(description="logical errors")
    rate: float = Field(description="errors / shots")
    low: float = Field(description="lower end of the 95% interval")
    high: float = Field(description="upper end of the 95% interval")
    per_round: float = Field(description="rate per round of syndrome measurement")


class MemberResult(Contract):
    """The candidate on one circuit of a family at one error rate, compared with the baselines on fresh shots.

    The intervals of all results of all attempts of a run hold together (95%).
    """

    distance: int = Field(description="code distance")
    rounds: int = Field(description="rounds of syndrome measurement")
    p: float = Field(description="physical error rate")
    effects: tuple[PairedEffect, ...] = Field(description="against each baseline, the inner decoder alone first")
    holds: bool = Field(
        description="the gain over the inner decoder alone is claimed here: the verdict is VERIFIED and, except at the "
        "target, the interval's lower end reaches `min_relative_gain`"
    )

    def __str__(self) -> str:
        return f"d={self.distance} r={self.rounds} p={self.p:g}"


class BaselineResult(Contract):
    """A baseline decoder on the shots of the effect draw."""

    name: str = Field(description="name of the baseline")
    rate: Rate = Field(description="its logical error rate on the same shots")
    against: PairedEffect = Field(description="the candidate against this baseline on the same shots")
    beats: bool = Field(description="lower bound of delta above 0")


class Guard(Contract):
    """One check of the candidate or of the verification itself."""

    name: str = Field(description="name of the guard")
    passed: bool = Field(description="whether it passed")
    evidence: str = Field(description="figures that it decided on")


LatencyScope = Literal["decoder", "requests"]


class Latency(Contract):
    """Quantiles of the time from one shot's detection events to its predictions."""

    shots: int = Field(description="shots that were decoded one by one")
    p50: float = Field(description="median")
    p99: float = Field(description="99% of the shots took at most this")
    p999: float = Field(description="99.9% of the shots took at most this")
    scope: LatencyScope = Field(
        description="decoder: gate, network and matching in one process, as `autoqec decode` runs them; requests: with "
        "a request to the sandbox for every shot that the network decodes (of branch code)",
    )


class Cost(Contract):
    """Size and work of the predecoder, as counted and as claimed."""

    n_params: int = Field(description="parameters, counted by the verifier")
    flops_per_syndrome: int = Field(description="floating-point operations per shot, counted by the verifier")
    claimed_n_params: int | None = Field(description="parameters according to the Runner")
    claimed_flops_per_syndrome: int | None = Field(
        description="floating-point operations per shot according to the Runner"
    )
    counted_by: CountedBy = Field(
        description="code that counted: the trusted compiler, or the sandboxed candidate process (a lower bound)"
    )
    candidate_us_per_shot: float = Field(
        description="CPU time of the candidate process per shot sent to it, in microseconds"
    )
    startup_cpu_s: float = Field(
        description="CPU seconds from the import of the editable modules until the net is built; if "
        "larger, those of the second process until its first answers, less the time of their shots",
    )
    memory_growth_mb: float = Field(
        description="most growth of anonymous memory since that import, read between draws, in 1e6 bytes"
    )
    ambiguous_share: float | None = optional("measured share of shots that the config's gate sends to the predecoder")

    decoding_us_per_shot: float | None = optional(
        "CPU time of gate, network and inner decoder together, per shot of the second draw, in us"
    )
    correlated_us_per_shot: float | None = optional(
        "CPU time of correlated matching on the same shots in the same process; null if the env has none"
    )
    latency_us: Latency | None = optional("elapsed time of single shots in us; `scope` says what it includes")
    latency_failure: str | None = optional(
        "why single shots were not decoded although batches were; no part of the verdict"
    )
    cpu_model: str | None = optional("processor on which the times were measured")

    @property
    def time_ratio(self) -> float | None:
        """CPU time per shot divided by that of correlated matching; None if one of them was not measured."""
        if self.decoding_us_per_shot is None or not self.correlated_us_per_shot:
            return None
        return self.decoding_us_per_shot / self.correlated_us_per_shot

    @property
    def expected_flops_per_syndrome(self) -> int:
        """Return the mean FLOPs per shot: `flops_per_syndrome` times the ambiguous share, if there is a gate."""
        share = 1.0 if self.ambiguous_share is None else self.ambiguous_share
        return math.ceil(share * self.flops_per_syndrome)

    @property
    def is_lower_bound(self) -> bool:
        """Whether branch code took part in the count, so that the true cost may be higher."""
        return self.counted_by == "candidate sandbox"


class CompositionParent(Contract):
    """A parent of a composition on the shots of the comparison."""

    round: int = Field(description="number of the parent's round")
    artifact_sha256: str = Field(description="hash of the parent's artifact")
    effect: PairedEffect = Field(description="this parent against the baseline decoder")
    against: PairedEffect = Field(description="the child against this parent, on the same shots")
    beaten: bool = Field(description="lower bound of `against.delta` above 0")


class Composition(Contract):
    """Child, parents and baseline decoder on the same shots."""

    verdict: CompositionVerdict = Field(description="sign of the interaction's interval")
    evidence: str = Field(description="figures behind the verdict")
    bundle_id: str = Field(description="identifier of the shots")
    chunk_digests: tuple[str, ...] = Field(description="hash of each chunk of shots")
    effect: PairedEffect = Field(description="the child against the baseline decoder")
    parents: tuple[CompositionParent, ...] = Field(description="the parents on the same shots")
    interaction: float = Field(description="the child's gain minus the sum of its parents' gains, per shot")
    interaction_low: float = Field(description="lower end of its 95% interval")
    interaction_high: float = Field(description="upper end of its 95% interval")


class RecordedEvidence(Contract):
    """Sealed blocks of recorded shots that a verification spent, and those that are left."""

    block_shots: int = Field(description="successive shots that are one unit of the test")
    first_block: int = Field(description="number of the first block, counted from the first recorded shot")
    blocks: int = Field(description="blocks that this candidate was tested on; no other candidate is")
    blocks_left: int = Field(description="sealed blocks that later candidates of the run can be tested on")
    candidates_left: int = Field(description="candidates that these blocks are enough for")
    e_values: dict[str, float] = Field(
        default_factory=dict, description="e-value against each baseline; the smallest is that of the test"
    )
    autocorrelation: float | None = optional(
        "correlation of the differences of successive blocks; null if not measured"
    )
    blocks_too_short: bool = Field(
        default=False, description="whether that correlation is too large for the assumption of the test"
    )


class VerifyReport(Contract):
    """Content of verification_report.json."""

    schema_version: Literal[1] = Field(
        default=1, description="format of the file, and of the test and decision rules that it follows"
    )
    run_id: str = Field(description="run of the round")
    round: int = Field(description="number of the round")
    round_attempt_id: str | None = Field(description="identifier of the attempt")
    branch: str | None = Field(description="branch of the round")
    commit_sha: str | None = Field(description="commit of the code that was measured")
    env_name: str = Field(description="`name` of the env")
    env_yaml_sha256: str = Field(description="hash of the frozen env file")
    artifact_sha256: str = Field(description="hash of the artifact under test")
    verdict: Verdict = Field(description="result of the verification")
    reasons: tuple[str, ...] = Field(description="why, in sentences")
    claim: str = Field(description="what may be claimed, in one sentence")
    backend: str = Field(description="inner decoder")
    decoder_rate: Rate | None = Field(
        description="logical error rate of inner decoder and predecoder; null if not measured"
    )
    effect: PairedEffect | None = Field(description="second draw, against the baseline decoder, at the target p")
    effect_simultaneous: PairedEffect | None = optional(
        "the same draw with intervals that hold for all attempts of the run together (95%)"
    )
    panel: tuple[BaselineResult, ...] = Field(default=(), description="comparison with each baseline")
    points: tuple[PairedEffect, ...] = Field(default=(), description="the env's other p, against each baseline")
    members: tuple[MemberResult, ...] = Field(
        default=(), description="every circuit of a family at every p, the target at its p first; else empty"
    )
    test: SequentialTest | None = Field(description="the sequential test; null if it was not reached")
    guards: tuple[Guard, ...] = Field(description="checks that every candidate must pass")
    cost: Cost | None = Field(description="null if the candidate could not be built")
    composition: Composition | None = optional("only of a composition of verified parents")
    recorded: RecordedEvidence | None = optional("only of recorded shots: what the test spent, and what is left")
    bundle_id: str | None = Field(description="identifier of the shots")
    seeds_commitment: str = Field(description="SHA-256 of the run's secret")
    chunk_digests: tuple[str, ...] = Field(default=(), description="hash of each chunk of shots")
    sandbox: str = Field(description="sandbox backend of the candidate process")
    versions: dict[str, str] = Field(description="package -> version")
    not_tested: tuple[str, ...] = Field(description="what this report says nothing about")
    judge_wallclock_s: float = Field(description="duration of the verification, in seconds")
    finished_at: UtcTime | None = optional("when the verification ended (UTC)")
