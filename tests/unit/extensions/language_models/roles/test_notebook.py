"""The notebook: figures agree with the history, nothing is crowded out, failed ideas have their reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import ContractError
from autoqec.extensions.language_models.contracts import Citation
from autoqec.extensions.language_models.roles import notebook, view_text
from autoqec.extensions.language_models.roles.notebook import Notebook, failed_ideas, failures_block, lessons_block
from autoqec.store import jsonl
from tests.support.role_views import ideator_view

CONFIG = {"type": "mlp", "mlp": {"hidden": 64}, "training": {"learning_rate": 0.003}}


def row(number: int, **more: Any) -> dict[str, Any]:
    known = {
        "round": number, "status": "ok", "status_reason": None, "hypothesis": f"idea {number}", "delta_ler": 1.234e-3,
        "n_params": 4000, "verify_verdict": None, "verify_reasons": None, "dsl_config": CONFIG, "branch": f"b{number}",
    }  # fmt: skip
    return known | more


def history(*rows: dict[str, Any]) -> Any:
    return ideator_view(rows).history


def cite(number: int = 1, figure: Any = "delta_ler", value: float = 1.23e-3) -> Citation:
    return Citation(round=number, figure=figure, value=value)


@pytest.fixture
def book(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path / "notebook.jsonl")


def test_lesson_is_kept_with_its_figures(book: Notebook) -> None:
    lesson = book.add("64 units at a rate of 0.003 gain 1.23e-3", [cite()], history(row(1)))
    assert book.lessons() == [lesson]
    text = lessons_block(book.lessons())
    assert "1. 64 units at a rate of 0.003 gain 1.23e-3 [r1 delta_ler 0.00123]" in text
    assert book.add(lesson.text, lesson.cites, history(row(1))) == lesson, "noted once"


@pytest.mark.parametrize(
    ("text", "cites", "reason"),
    [
        ("it gains", [cite(value=2.0e-3)], "delta_ler of round 1 is 0.001234, not 0.002"),
        ("it gains", [cite(9)], "round 9 is not recorded"),
        ("it gains", [cite(2)], "delta_ler of round 2 is not measured"),
        ("it gains", [cite(3)], "round 3 is not recorded"),
        ("it gains 32%", [cite()], "`32%` is in no cited figure"),
        ("it gains 4.5e-3", [cite()], "`4.5e-3` is in no cited figure"),
    ],
)
def test_lesson_with_a_figure_that_the_history_lacks_is_refused(
    book: Notebook, text: str, cites: list[Citation], reason: str
) -> None:
    rows = history(row(1), row(2, delta_ler=None), row(3, status="orphaned_branch"))
    with pytest.raises(ContractError) as caught:
        book.add(text, cites, rows)
    assert reason in str(caught.value) and book.lessons() == []


def test_percentages_and_signs_are_compared_with_the_cited_value(book: Notebook) -> None:
    rows = history(row(1, delta_ler=-0.05))
    assert book.add("it loses 5.0% and not less", [cite(value=-0.05)], rows).id == 1


def test_full_notebook_keeps_every_lesson_until_one_replaces_them(book: Notebook) -> None:
    rows = history(row(1))
    for number in range(notebook.MAX_LESSONS):
        book.add(f"lesson number {number}", [cite()], rows)
    with pytest.raises(ContractError, match=f"holds {notebook.MAX_LESSONS} lessons"):
        book.add("one more", [cite()], rows)
    with pytest.raises(ContractError, match="no lesson 99"):
        book.add("one more", [cite()], rows, replaces=[99])
    merged = book.add("the first three in one", [cite()], rows, replaces=[1, 2, 3])
    kept = [lesson.id for lesson in book.lessons()]
    assert kept == [*range(4, notebook.MAX_LESSONS + 1), merged.id]
    text = lessons_block(book.lessons())
    assert all(f"lesson number {number}" in text for number in range(3, notebook.MAX_LESSONS)), "none is left out"


def test_longest_lessons_and_failures_stay_within_their_room(book: Notebook) -> None:
    rows = history(
        *(row(n, status="train_error", status_reason=f"reason {'x' * n}", delta_ler=1e-3) for n in range(1, 90))
    )
    for number in range(notebook.MAX_LESSONS):
        cites = [cite(figure="n_params", value=4000.0)] * 6
        book.add(f"{number} " + "long " * 80, cites, rows)
    text = lessons_block(book.lessons())
    assert text.count(" [r1 n_params 4000") == notebook.MAX_LESSONS and len(text) <= view_text.LESSONS_CHARS
    assert len(failures_block(rows)) <= view_text.FAILURES_CHARS


def test_failed_ideas_have_their_reason_and_share_a_line_if_it_is_the_same() -> None:
    rows = history(
        row(1),
        row(2, status="train_error", status_reason="the loss is not finite at step 12"),
        row(3, status="train_error", status_reason="the loss is not finite at step 99"),
        row(4, verify_verdict="FAILED", verify_reasons=["worse than matching"]),
        row(5, delta_ler=-2e-3),
        row(6, verify_verdict="VERIFIED"),
        row(7, status="orphaned_branch"),
    )
    assert failed_ideas(rows) == [
        "r5: idea 5: no gain on validation shots, delta -2.00e-03",
        "r4: idea 4: FAILED: worse than matching",
        "r2, r3: idea 3: train_error: the loss is not finite at step 99",
    ]


def test_damaged_notebook_names_its_line(book: Notebook, tmp_path: Path) -> None:
    jsonl.append(tmp_path / "notebook.jsonl", {"id": 1, "text": "x"})
    with pytest.raises(ContractError, match=r"notebook.jsonl:1"):
        book.lessons()
