"""Terms for the shots and the reference of a verification, which all views of a run share."""

from __future__ import annotations

from typing import NamedTuple


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
