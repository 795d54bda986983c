"""Messages between the trusted parent of a round and its child process: spec.json in, result.json out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.env import MAX_MEMBERS
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import FailureCause, MemberCounts, PairedCounts
from autoqec.store.layout import RoundLayout

EVENTS = "events.jsonl"
RESULT = "result.json"
SCRATCH_DIR = "child.tmp"  # in the round directory while the child runs; recovery may remove it
REASON_LENGTH = 400
DEVICE_LENGTH, MAX_GPUS = 100, 64

ChildStatus = Literal["ok", "compile_error", "train_error", "killed_by_safety"]


class ChildSpec(Contract):
    """Input of the child: profile, env and config by value, other files by path."""

    env_yaml: str
    predecoder_config: dict[str, Any]
    profile: Profile
    seed: int
    modules_dir: str | None
    parent_checkpoint: str | None
    threads: int
    out_dir: str
    recorded_dir: str | None = None


class ChildResult(Contract):
    """Output of the child. It is not trusted: its numbers only guide the search."""

    status: ChildStatus
    reason: str | None = Field(default=None, max_length=REASON_LENGTH)
    cause: FailureCause | None = None
    val: PairedCounts | None = None
    val_members: tuple[MemberCounts, ...] | None = Field(default=None, max_length=MAX_MEMBERS)
    n_params: int | None = None
    flops_per_syndrome: int | None = None
    train_steps: int | None = None
    train_shots: int | None = None
    final_loss: float | None = None
    train_wallclock_s: float | None = None
    eval_wallclock_s: float | None = None
    vram_peak_gb: float | None = None
    rss_peak_gb: float | None = None
    device: str | None = Field(default=None, max_length=DEVICE_LENGTH)
    gpus: int | None = Field(default=None, ge=0, le=MAX_GPUS)


def out_layout(out_dir: Path) -> RoundLayout:
    """Return the layout of the child's output directory, the same as a round directory's."""
    return RoundLayout(out_dir, 0)


def one_line(text: str) -> str:
    """Return a text as one printable line of at most REASON_LENGTH characters."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(clean.split())
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 1] + "…"
