"""Progress events: the `--json` output of each kind, and its entry in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from autoqec.contracts import events
from autoqec.contracts.events import Event
from autoqec.contracts.round import RoundMetrics
from tests.support import rounds

PAGE = Path(__file__).parents[3] / "docs/contracts/command-line.md"
COUNTS = {"shots": 50, "errors_reference": 7, "errors_candidate": 5, "fixed": 3, "broken": 1}


def models(model: type[Event] = Event) -> Iterator[type[Event]]:
    for subclass in model.__subclasses__():
        if isinstance(subclass.model_fields["kind"].default, str):
            yield subclass
        yield from models(subclass)


def test_payload_contains_only_fields_that_were_set() -> None:
    begun = events.RoundStarted(round=1, phase="thinking")
    assert begun.payload() == {"round": 1, "phase": "thinking"}, "no `job`"
    step = events.TrainingProgress(round=1, phase="training", step=2, steps=9, loss=None, eta_s=None)
    assert step.payload() == {"round": 1, "phase": "training", "step": 2, "steps": 9, "loss": None, "eta_s": None}
    test = events.SequentialTestProgress(round=1, **COUNTS, budget=90, e_value=2.0, threshold=40.0)
    assert test.payload() == {"round": 1, **COUNTS, "budget": 90, "e_value": 2.0, "threshold": 40.0}
    assert test.phase == "verification", "for readers of the model only"


def test_metrics_are_flat_and_a_row_is_nested() -> None:
    metrics = RoundMetrics(status="train_error", status_reason="no memory")
    measured = events.RoundMeasured(round=3, phase="recording", metrics=metrics)
    assert measured.payload() == {"round": 3, "phase": "recording", **metrics.dump()}
    ended = events.RoundEnded(round=3, status="train_error", status_reason="no memory")
    assert ended.payload() == {"round": 3, "status": "train_error", "status_reason": "no memory"}
    row = rounds.row(3)
    assert events.RoundRecorded(round=3, phase="done", row=row).payload() == {
        "round": 3,
        "phase": "done",
        "row": row.dump(),
    }


def test_documentation_lists_every_kind_and_its_keys() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M))
    only_logged = (events.RunStarted, events.RunResumed, events.RunStopped)
    nested = {"kind", "metrics"}
    printed = [model for model in models() if model not in (*only_logged, events.LiveProgress)]
    assert len(printed) > 20
    for model in printed:
        own_keys = set(model.__annotations__) - nested | {"round"} & set(model.model_fields)
        keys = set(re.findall(r"`(\w+)`", table[model.model_fields["kind"].default]))
        assert (
            own_keys - {"frequent", "phase"}
            <= keys
            <= set(model.model_fields)
            | {
                "RoundMetrics",
                "training",
                "status",
                "status_reason",
            }
        ), model
