"""Run report of the commands: outcomes in current terms, derived fields read on demand."""

from pathlib import Path

import pytest
from rich.console import Console

from autoqec.reporting import run_report
from autoqec.reporting.summary import front_table
from autoqec.reporting.text import count
from autoqec.verification.report import render
from tests.support import runs


@pytest.mark.parametrize(
    ("counted_by", "mark", "words"), [("candidate sandbox", "≥ ", "at least "), ("baseline compiler", "", "")]
)
def test_counts_of_branch_code_are_shown_as_lower_bounds(
    tmp_path: Path, counted_by: str, mark: str, words: str
) -> None:
    layout = runs.make_run(
        tmp_path / "workspace", 2, artifacts=False, change=lambda row: row | {"cost_counted_by": counted_by}
    )
    report = run_report.load(layout)
    (entry, *_) = report.front
    console = Console(record=True, width=200)
    console.print(front_table(report))
    pareto = report.state.verified[entry.key]
    shown = console.export_text()
    assert f"{mark}{count(pareto.n_params)}" in shown and ("≥" in shown) is bool(mark)
    verification = runs.report_of(entry.row.dump())
    assert verification.cost is not None
    cost = verification.cost.model_copy(update={"counted_by": counted_by})
    text = render(verification.model_copy(update={"cost": cost}))
    assert f"{words}{cost.n_params} parameters" in text and ("at least 341000" in text) is bool(words)


def test_report_has_details_only_on_a_page(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 3)
    assert run_report.load(layout).details == {} == dict.fromkeys(run_report.load(layout).listed)
    (page,) = run_report.load_pages([layout])
    assert set(page.details) == {entry.key for entry in page.rounds} and page.listed == page.rounds
