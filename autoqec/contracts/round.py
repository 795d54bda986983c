"""Input (RunnerConfig) and result (RoundMetrics) of one Runner round, its timing, and trials before it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.profiles import MAX_SCALE, MIN_SCALE, ProfileName

UtcTime = Annotated[AwareDatetime, AfterValidator(lambda time: time.astimezone(UTC))]


class Timing(Contract):
    """Start, end and duration of the phases of one round; None: not recorded, as in rows of earlier versions."""

    started_at: UtcTime | None = optional("when the round began")
    finished_at: UtcTime | None = optional("when the round ended")
    proposal_wallclock_s: float | None = optional("seconds until Ideator and Coder had answered")
    setup_wallclock_s: float | None = optional("seconds to create the branch and to wait for a free slot")
    train_wallclock_s: float | None = optional("seconds of training")
    eval_wallclock_s: float | None = optional("seconds of the measurement on validation shots")
    verify_wallclock_s: float | None = optional("seconds of the verification")

    @property
    def phases(self) -> list[tuple[str, float]]:
        """Return name and seconds of each recorded phase, in order."""
        known = [
            ("proposal", self.proposal_wallclock_s),
            ("setup", self.setup_wallclock_s),
            ("training", self.train_wallclock_s),
            ("evaluation", self.eval_wallclock_s),
            ("verification", self.verify_wallclock_s),
        ]
        return [(name, seconds) for name, seconds in known if seconds is not None]

    def describe(self) -> str:
        """Return a text: `2026-01-02 03:04:05 UTC, 42.0 s: proposal 0.5 s, training 40.0 s`; empty without a start."""
        if self.started_at is None:
            return ""
        total = seconds_between(self.started_at, self.finished_at)
        text = f"{self.started_at:%Y-%m-%d %H:%M:%S} UTC"
        text += f", {total:.1f} s" if total is not None else ""
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.phases)
        return f"{text}: {phases}" if phases else text


def utc_now() -> datetime:
    """Return the current time in UTC, to the millisecond."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from `start` to `end`; None if either is unknown, 0 if clocks disagree about their order."""
    if start is None or end is None:
        return None
    return max(0.0, round((end - start).total_seconds(), 3))


class PairedCounts(Contract):
    """Outcomes of two decoders on the same shots."""

    shots: int = Field(description="shots that both decoders decoded")
    errors_reference: int = Field(description="logical errors of the reference")
    errors_candidate: int = Field(description="logical errors of the candidate")
    fixed: int = Field(description="reference wrong, candidate right")
    broken: int = Field(description="reference right, candidate wrong")


class MemberCounts(Contract):
    """Outcomes of predecoder and inner decoder on validation shots of one circuit of a family."""

    distance: int = Field(description="code distance")
    rounds: int = Field(description="rounds of syndrome measurement")
    p: float = Field(description="physical error rate")
    counts: PairedCounts = Field(description="paired outcomes; the reference is the inner decoder alone")


RoundStatus = Literal[
    "ok",
    "compile_error",
    "train_error",
    "killed_by_safety",
    "compose_conflict",
    "orphaned_branch",
    "branch_manually_deleted",
]

# Why a round has no result, in terms that decide what to try instead.
FailureCause = Literal[
    "bad config",
    "module code",
    "does not fit",
    "cost limit",
    "too slow",
    "not finite",
    "out of memory",
    "time limit",
    "disk limit",
    "process limit",
    "no sandbox",
    "crash",
]

ForkFrom = Annotated[str | tuple[str, ...], Field(description="`baseline`, a branch, or the branches of a composition")]
ComposeMode = Literal["pure", "with_edit"]
Composed = Annotated[ComposeMode | None, Field(description="of a composition: merge only, or merge and edit")]


def parent_branches(fork_from: ForkFrom) -> tuple[str, ...]:
    """Return the branches that a round forks from, first parent first; () for the baseline."""
    if fork_from == "baseline":
        return ()
    return (fork_from,) if isinstance(fork_from, str) else fork_from


def canonical_fork(fork_from: ForkFrom) -> str:
    """Return the order-free spelling of a parent set: sorted, joined by `|`."""
    return fork_from if isinstance(fork_from, str) else "|".join(sorted(fork_from))


class RunnerConfig(Contract):
    """Everything that one round depends on. The env is given by content, not by name."""

    env_yaml: str = Field(description="the frozen env file's text")
    predecoder_config: dict[str, Any] = Field(description="config of the predecoder (PredecoderDSL)")
    profile: ProfileName = Field(default="dev", description="amounts of data and limits")
    scale: float = Field(
        default=1.0, ge=MIN_SCALE, le=MAX_SCALE, description="factor on the profile's training and verification"
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="of training")
    round_dir: str = Field(description="directory for the round's files")
    run_id: str = Field(default="local", description="run that the round belongs to")
    round_idx: int = Field(default=1, ge=1, description="number of the round in its run")
    modules_dir: str | None = optional("directory of editable modules to overlay; null: the package's own")
    code_cwd: str | None = optional("worktree of the round's branch")
    branch: str | None = optional("branch of the round; null outside a run")
    commit_sha: str | None = optional("commit of the code that is measured")
    fork_from: ForkFrom = "baseline"
    compose_mode: Composed = None
    round_attempt_id: str | None = optional("identifier of the attempt")
    parent_delta_ler: float | None = optional(
        "delta_ler of the fork parent on the same val shots; null: forked from baseline"
    )
    parent_checkpoint: str | None = optional("weights to start from with `training.init: parent`")
    threads: int = Field(default=1, ge=1, description="CPU threads")
    visible_gpus: str | None = optional(
        "CUDA_VISIBLE_DEVICES of a training on one GPU; null: that of the Runner's process"
    )

    container: str | None = optional("SHA-256 of the image that the job runs in; null: none")

    @model_validator(mode="after")
    def _branch_has_identity(self) -> RunnerConfig:
        if self.branch is not None and (self.code_cwd is None or self.round_attempt_id is None):
            raise ValueError("a round on a branch needs `code_cwd` and `round_attempt_id` beside `branch`")
        if (self.compose_mode is not None) != isinstance(self.fork_from, tuple):
            raise ValueError("`compose_mode` belongs to a composition (a list in `fork_from`), and to nothing else")
        return self


@dataclass(frozen=True)
class TrainingResult:
    """What a round trained. None: not known, since the round ended before."""

    n_params: int | None
    flops_per_syndrome: int | None
    steps: int | None
    shots: int | None
    final_loss: float | None


@dataclass(frozen=True)
class ValidationResult:
    """Difference to the inner decoder on validation shots: guidance for the search, no evidence.

    Attributes:
        delta: Difference of the logical error rates per shot, positive is better.
        ler_reference: Logical error rate of the inner decoder alone, per shot.
        counts: Paired outcomes; None in files that hold only rates.
    """

    delta: float
    ler_reference: float | None
    counts: PairedCounts | None

    @property
    def relative(self) -> float | None:
        """`delta` as a share of the inner decoder's logical error rate; None if it made no error."""
        return self.delta / self.ler_reference if self.ler_reference else None


class RoundMetrics(Contract):
    """What the Runner measured. Absent artifacts and figures are null.

    Rates are per shot at the env's target p, on the val band's shots: guidance for the search, no evidence.
    delta_ler = ler_plain_classical - ler_predecoder, positive is better.
    """

    status: RoundStatus = Field(description="how the round ended")
    status_reason: str | None = optional("why, if the status is not `ok`")
    failure_cause: FailureCause | None = optional(
        "kind of the failure that `status_reason` describes; null in earlier versions"
    )
    delta_ler: float | None = optional("ler_plain_classical - ler_predecoder, positive is better")
    ler_plain_classical: float | None = optional("logical error rate of the inner decoder alone, per shot")
    ler_predecoder: float | None = optional("logical error rate with the predecoder, per shot")
    delta_vs_parent: float | None = optional("delta_ler minus that of the fork parent")
    val_shots: int | None = optional("validation shots decoded")
    val_errors_plain: int | None = optional("logical errors of the inner decoder alone")
    val_errors_predecoder: int | None = optional("logical errors with the predecoder")
    val_fixed: int | None = optional("plain wrong, predecoder right")
    val_broken: int | None = optional("plain right, predecoder wrong")
    val_members: tuple[MemberCounts, ...] | None = optional(
        "of a family: the same counts of every circuit, the target's first; else null"
    )
    flops_per_syndrome: int | None = optional("floating-point operations of the net per shot, counted by the compiler")
    n_params: int | None = optional("trainable parameters")
    scale: float | None = optional("factor on the profile's training and verification; null in earlier versions: 1")
    train_seed: int | None = optional("seed of training")
    train_steps: int | None = optional("optimizer steps")
    train_shots: int | None = optional("shots trained on")
    final_loss: float | None = optional("loss at the end of training")
    train_wallclock_s: float | None = optional("duration of training, in seconds")
    eval_wallclock_s: float | None = optional("duration of the validation, in seconds")
    vram_peak_gb: float | None = optional("peak GPU memory; null without a GPU")
    rss_peak_gb: float | None = optional("peak resident memory of the child process")
    device: str | None = optional("GPU, or processor, that trained; null in earlier versions")
    gpus: int | None = Field(default=None, ge=0, description="GPUs that trained; null in earlier versions")
    checkpoint_path: str | None = optional("absolute in metrics.json, relative to the run directory in rows")
    training_log_path: str | None = optional("as checkpoint_path, for train.log")
    measurement_started_at: UtcTime | None = optional("when the Runner began (UTC)")
    measurement_finished_at: UtcTime | None = optional("when the Runner ended (UTC)")

    @model_validator(mode="after")
    def _reason_when_not_ok(self) -> RoundMetrics:
        if self.status != "ok" and not self.status_reason:
            raise ValueError("a round that is not ok says why in `status_reason`")
        if self.status == "ok" and (self.delta_ler is None or self.checkpoint_path is None):
            raise ValueError("an ok round has `delta_ler` and `checkpoint_path`")
        return self

    @property
    def training(self) -> TrainingResult:
        """The part of the metrics that training gave."""
        return TrainingResult(
            n_params=self.n_params,
            flops_per_syndrome=self.flops_per_syndrome,
            steps=self.train_steps,
            shots=self.train_shots,
            final_loss=self.final_loss,
        )

    @property
    def validation(self) -> ValidationResult | None:
        """The part of the metrics that the validation shots gave; None if there is none."""
        if self.delta_ler is None:
            return None
        values = (self.val_shots, self.val_errors_plain, self.val_errors_predecoder, self.val_fixed, self.val_broken)
        counts = None
        if self.val_shots and None not in values:
            counts = PairedCounts.model_validate(dict(zip(PairedCounts.model_fields, values, strict=True)))
        return ValidationResult(self.delta_ler, self.ler_plain_classical, counts)


MAX_LOG_CHARS = 3_000


class Trial(Contract):
    """One line of trials.jsonl, appended before the result is used. Its figures only guide the search."""

    key: str = Field(description="SHA-256 of everything that determines the result")
    kind: Literal["check", "screen"] = Field(
        description="check: one training step, to find errors; screen: a share of a round's training"
    )
    round: int = Field(ge=1, description="round that was being proposed")
    round_attempt_id: str = Field(description="its attempt")
    share: float = Field(ge=0, le=1, description="share of a round's training; 0 for a check")
    status: Literal["ok", "compile_error", "train_error", "killed_by_safety"] = Field(description="how it ended")
    reason: str | None = Field(default=None, max_length=400, description="why it failed")
    cause: FailureCause | None = optional("kind of the failure")
    log: str = Field(default="", max_length=MAX_LOG_CHARS, description="end of the traceback of a failure")
    n_params: int | None = optional("parameters of the network")
    flops_per_syndrome: int | None = optional("FLOPs per shot")
    train_shots: int | None = optional("shots of training")
    val: PairedCounts | None = optional("counts on the first validation shots")
    seconds: float = Field(ge=0, description="duration, counted in the compute hours of the run")
    at: UtcTime = Field(description="when it ended")
