"""One Runner round: what goes in (RunnerConfig) and what was measured (RoundMetrics)."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.profiles import ProfileName
from autoqec.contracts.timing import UtcTime

RoundStatus = Literal[
    "ok",
    "compile_error",
    "train_error",
    "killed_by_safety",
    "compose_conflict",
    "orphaned_branch",
    "branch_manually_deleted",
]
ROUND_STATUS_VALUES: tuple[str, ...] = get_args(RoundStatus)

ForkFrom = str | tuple[str, ...]
ComposeMode = Literal["pure", "with_edit"]


def parent_branches(fork_from: ForkFrom) -> tuple[str, ...]:
    """The branches that a round forks from, first parent first; () for the baseline."""
    if fork_from == "baseline":
        return ()
    return (fork_from,) if isinstance(fork_from, str) else fork_from


def canonical_fork(fork_from: ForkFrom) -> str:
    """Order-free spelling of a parent set: sorted, joined by `|`."""
    return fork_from if isinstance(fork_from, str) else "|".join(sorted(fork_from))


class RunnerConfig(Contract):
    """Everything one round depends on. The env travels by content, never by name."""

    env_yaml: str = Field(description="the frozen env file's text")
    predecoder_config: dict[str, Any]
    profile: ProfileName = "dev"
    seed: int = Field(default=0, ge=0, lt=2**31)
    round_dir: str
    run_id: str = "local"
    round_idx: int = Field(default=1, ge=1)
    modules_dir: str | None = Field(default=None, description="the search surface to overlay; null: the package's own")
    code_cwd: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    fork_from: ForkFrom = "baseline"
    compose_mode: ComposeMode | None = None
    round_attempt_id: str | None = None
    parent_delta_ler: float | None = Field(
        default=None, description="delta_ler of the fork parent on the same val shots; null: forked from baseline"
    )
    parent_checkpoint: str | None = None
    threads: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _branch_has_identity(self) -> RunnerConfig:
        if self.branch is not None and (self.code_cwd is None or self.round_attempt_id is None):
            raise ValueError("a round on a branch needs `code_cwd` and `round_attempt_id` beside `branch`")
        if (self.compose_mode is not None) != isinstance(self.fork_from, tuple):
            raise ValueError("`compose_mode` belongs to a composition (a list in `fork_from`), and to nothing else")
        return self


class RoundMetrics(Contract):
    """What the Runner measured. Absent artifacts and figures are null.

    Rates are per shot at the env's target p, on the val band's shots: guidance for the search, no evidence.
    delta_ler = ler_plain_classical - ler_predecoder, positive is better.
    """

    status: RoundStatus
    status_reason: str | None = None
    delta_ler: float | None = None
    ler_plain_classical: float | None = None
    ler_predecoder: float | None = None
    delta_vs_parent: float | None = None
    val_shots: int | None = None
    val_errors_plain: int | None = None
    val_errors_predecoder: int | None = None
    val_fixed: int | None = Field(default=None, description="plain wrong, predecoder right")
    val_broken: int | None = Field(default=None, description="plain right, predecoder wrong")
    flops_per_syndrome: int | None = None
    n_params: int | None = None
    train_seed: int | None = None
    train_steps: int | None = None
    train_shots: int | None = None
    final_loss: float | None = None
    train_wallclock_s: float | None = None
    eval_wallclock_s: float | None = None
    vram_peak_gb: float | None = None
    rss_peak_gb: float | None = None
    checkpoint_path: str | None = Field(
        default=None, description="absolute in metrics.json, relative to the run directory in rows"
    )
    training_log_path: str | None = None
    measurement_started_at: UtcTime | None = Field(default=None, description="when the Runner began (UTC)")
    measurement_finished_at: UtcTime | None = Field(default=None, description="when the Runner ended (UTC)")

    @model_validator(mode="after")
    def _reason_when_not_ok(self) -> RoundMetrics:
        if self.status != "ok" and not self.status_reason:
            raise ValueError("a round that is not ok says why in `status_reason`")
        if self.status == "ok" and (self.delta_ler is None or self.checkpoint_path is None):
            raise ValueError("an ok round has `delta_ler` and `checkpoint_path`")
        return self
