"""The notebook of a run: lessons of the Ideator, each with the measured figures that it rests on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.messages import Line

Figure = Literal[
    "delta_ler", "delta_vs_parent", "val_shots", "n_params", "flops_per_syndrome", "delta_vs_baseline_holdout",
    "delta_holdout_low", "delta_holdout_high",
]  # fmt: skip


class Citation(Contract):
    """One measured figure of a recorded round."""

    round: int = Field(ge=1, description="number of the round")
    figure: Figure = Field(description="field of its row in history.jsonl")
    value: float = Field(description="its value, as the lesson uses it")


class Lesson(Contract):
    """One line of notebook.jsonl."""

    id: int = Field(ge=1, description="number of the lesson in its run")
    text: Line = Field(description="what was learned")
    cites: tuple[Citation, ...] = Field(min_length=1, max_length=6, description="figures that it rests on")
    replaces: tuple[int, ...] = Field(default=(), description="lessons that this one contains, which are dropped")
    attempt: str | None = Field(default=None, description="id of the attempt that wrote it")
