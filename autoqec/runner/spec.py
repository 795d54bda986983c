"""What the trusted parent and the child of a round hand each other: spec.json in, result.json out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.profiles import Profile
from autoqec.contracts.verdict import PairedCounts
from autoqec.store.layout import RoundLayout

EVENTS = "events.jsonl"
RESULT = "result.json"
REASON_LENGTH = 400

ChildStatus = Literal["ok", "compile_error", "train_error", "killed_by_safety"]


class ChildSpec(Contract):
    """One round's work. The profile travels by value; the env and the config by content."""

    env_yaml: str
    predecoder_config: dict[str, Any]
    profile: Profile
    seed: int
    modules_dir: str | None
    parent_checkpoint: str | None
    threads: int
    out_dir: str


class ChildResult(Contract):
    """What the child found. The parent believes its figures no further than guidance for the search goes."""

    status: ChildStatus
    reason: str | None = Field(default=None, max_length=REASON_LENGTH)
    val: PairedCounts | None = None
    n_params: int | None = None
    flops_per_syndrome: int | None = None
    train_steps: int | None = None
    train_shots: int | None = None
    final_loss: float | None = None
    train_wallclock_s: float | None = None
    eval_wallclock_s: float | None = None
    vram_peak_gb: float | None = None
    rss_peak_gb: float | None = None


def out_layout(out_dir: Path) -> RoundLayout:
    """The child's private directory, laid out as the round directory is."""
    return RoundLayout(out_dir, 0)


def one_line(text: str) -> str:
    """A reason that fits the contract: printable, one line, capped."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    words = " ".join(clean.split())
    return words if len(words) <= REASON_LENGTH else words[: REASON_LENGTH - 1] + "…"
