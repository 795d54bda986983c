"""Views of the roles with default values for fields that a test does not need."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoqec.contracts.views import AnalystView, CoderView, IdeatorView


def ideator_view(history: Iterable[dict[str, Any]] = (), **more: Any) -> IdeatorView:
    fields: dict[str, Any] = {
        "run_id": "20260101-000000",
        "seed": 1,
        "env": None,
        "gate_available": True,
        "profile": None,
        "baseline_config": {},
    }
    return IdeatorView(**{**fields, **more, "history": tuple(history), "pending": tuple(more.get("pending", ()))})


def coder_view(proposal: dict[str, Any], **more: Any) -> CoderView:
    return CoderView(**{"hypothesis": "h", "slug": "s", "proposal": proposal, **more})


def analyst_view(metrics_path: Path, **more: Any) -> AnalystView:
    return AnalystView(**{"hypothesis": "h", "metrics_path": metrics_path, **more})
