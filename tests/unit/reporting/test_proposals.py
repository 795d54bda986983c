"""Trials and calls of language models in `show` and in the report: counts beside each rate, cost in tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autoqec.contracts.round import PairedCounts, Trial
from autoqec.extensions.language_models.clients.base import Message, Request
from autoqec.extensions.language_models.clients.ledger import Ledger, MeteredLM
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.reporting import html, run_report
from autoqec.reporting.summary import print_summary
from autoqec.store import jsonl
from autoqec.store.layout import RunLayout
from tests.support import runs

COUNTS = PairedCounts(shots=5_000, errors_reference=307, errors_candidate=305, fixed=3, broken=1)
HOSTILE = "</td><script>alert(1)</script>\x1b[31m"


def trial(attempt: int, **more: Any) -> dict[str, Any]:
    fields = {
        "key": "k", "kind": "check", "round": attempt, "round_attempt_id": f"attempt-{attempt}", "share": 0,
        "status": "ok", "seconds": 2.5, "at": "2026-01-01T00:00:00Z", "train_shots": 64,
    }  # fmt: skip
    return Trial.model_validate(fields | more).dump()


def proposed(number: int) -> str:
    return "hybrid llm some-model" if number == 2 else f"hybrid tpe {number}"


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """Three rounds; the second was proposed by a model, after two screens and one repair."""
    made = runs.make_run(tmp_path / "workspace", 3, change=lambda row: row | {"ideator_source": proposed(row["round"])})
    screen = {"kind": "screen", "share": 0.05, "val": COUNTS, "train_shots": 6_000}
    for line in (
        trial(2, **screen),
        trial(2, **screen | {"status": "train_error", "val": None, "reason": "NaN"}),
        trial(2, status="compile_error", reason=f"custom_fn.py: {HOSTILE}", train_shots=None),
        trial(2, val=COUNTS),
    ):
        jsonl.append(made.trials, line)
    ledger = Ledger(made.ledger)
    for role, words in (("ideator", "word " * 4_000), ("ideator", "hi"), ("coder", "hi")):
        with ledger.round("attempt-2"):
            request = Request(role=role, messages=(Message(role="user", content=words),))
            MeteredLM(ScriptedLM(["hello"]), ledger).complete(request)
    return made


def shown(layout: RunLayout) -> str:
    console = Console(record=True, width=400)
    print_summary(console, run_report.load(layout))
    return console.export_text()


LINES = (
    "screen, 5% of the training: +0.7% [-1.0, +2.5]% fewer failures than the baseline decoder; "
    "Δ = +4.00e-04 [-5.82e-04, +1.58e-03] per shot; 307 → 305 errors in 5000 validation shots (3 fixed, 1 broken); "
    "6k training shots, 2.5 s",
    "screen, 5% of the training: train_error: NaN, 2.5 s",
    "check of the code: compile_error: custom_fn.py: ",
    "check of repair 1: ok, 2.5 s",
)
TRIALS = "2 screens, 2 checks of code, 2 failed; 12.1k training shots, 0:10"


def test_summary_shows_trials_calls_and_tokens(layout: RunLayout) -> None:
    text = shown(layout)
    totals = Ledger(layout.ledger).totals.usage
    assert all(line in text for line in LINES) and "\x1b" not in text
    assert f"Trials: {TRIALS}" in text
    assert "Language models: 3 calls, 0 failed, " in text and "1 of 3 rounds proposed by a model" in text
    assert "  coder: 1 call, 0 failed, " in text and "  ideator: 2 calls, 0 failed, " in text
    assert totals.prompt_tokens > 1_000 and f"{totals.prompt_tokens / 1000:.3g}k tokens in" in text


def test_report_shows_them_with_the_round_and_in_the_budget(layout: RunLayout) -> None:
    page = html.page(run_report.load_pages([layout]))
    part = page.split(f'id="run-{runs.RUN_ID}-round-2"')[1].split('<details class="round"')[0]
    for line in LINES:
        assert line in part
    assert "<script>alert" not in page and "language models: 3 calls" in part
    assert "Trials and language models" not in page.split(f'id="run-{runs.RUN_ID}-round-3"')[1]
    budget = page.split(f'id="run-{runs.RUN_ID}-budget"')[1]
    assert TRIALS in budget and "3 calls, 0 failed" in budget and "1 of 3" in budget and "… coder" in budget


def test_json_has_trials_and_usage_by_role(layout: RunLayout) -> None:
    value = json.loads(json.dumps(run_report.load(layout).dump()))
    assert [(line["kind"], line["status"]) for line in value["trials"]] == [
        ("screen", "ok"), ("screen", "train_error"), ("check", "compile_error"), ("check", "ok"),
    ]  # fmt: skip
    usage = value["language_models"]
    assert usage["calls"] == 3 and {role: one["calls"] for role, one in usage["by_role"].items()} == {
        "coder": 1, "ideator": 2,
    }  # fmt: skip
    assert value["proposed_by_model"] == 1


def test_run_without_a_model_shows_neither(tmp_path: Path) -> None:
    text = shown(runs.make_run(tmp_path / "workspace", 2, artifacts=False))
    assert "Trials" not in text and "anguage models" not in text


def test_damaged_trials_are_named(layout: RunLayout) -> None:
    layout.trials.write_text('{"kind": 7}\n', encoding="utf-8")
    assert "Trials cannot be read" in shown(layout)
    assert "trials.jsonl cannot be read" in html.page(run_report.load_pages([layout]))
