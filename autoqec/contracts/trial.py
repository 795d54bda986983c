"""A trial: a short training of a config and its code in the sandbox, before or without a round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.counts import PairedCounts
from autoqec.contracts.round import FailureCause
from autoqec.contracts.timing import UtcTime

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
    cause: FailureCause | None = Field(default=None, description="kind of the failure")
    log: str = Field(default="", max_length=MAX_LOG_CHARS, description="end of the traceback of a failure")
    n_params: int | None = Field(default=None, description="parameters of the network")
    flops_per_syndrome: int | None = Field(default=None, description="FLOPs per shot")
    train_shots: int | None = Field(default=None, description="shots of training")
    val: PairedCounts | None = Field(default=None, description="counts on the first validation shots")
    seconds: float = Field(ge=0, description="duration, counted in the compute hours of the run")
    at: UtcTime = Field(description="when it ended")
