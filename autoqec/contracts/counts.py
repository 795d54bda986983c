"""Outcomes of two decoders on the same shots: part of metrics, and of verification reports."""

from __future__ import annotations

from pydantic import Field

from autoqec.contracts.base import Contract


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
