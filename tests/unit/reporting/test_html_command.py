"""The commands `autoqec report`, `watch` and `export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from tests.support import runs
from tests.support.shown import check_error


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs.make_run(tmp_path / "workspace", 3)
    monkeypatch.chdir(tmp_path / "workspace")
    return tmp_path / "workspace"


def test_report_prints_the_paths_it_wrote(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["report", runs.RUN_ID]) == 0
    path = workspace / "runs" / runs.RUN_ID / "report.html"
    assert capsys.readouterr().out.strip() == str(path.relative_to(workspace)) and path.stat().st_size > 10_000
    assert run_cli(group, ["report", f"runs/{runs.RUN_ID}", "--format", "svg", "--out", "p", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(event["path"]).name for event in events] == [
        f"{name}.svg" for name in ("front", "front_time", "ler", "ratio", "course")
    ]


def test_runs_of_other_repositories_are_named_by_their_directories(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = runs.make_run(tmp_path / "other", 2, run_id="20250102-030406")
    same = runs.make_run(tmp_path / "same", 2)
    run_directory = workspace / "runs" / runs.RUN_ID
    monkeypatch.chdir(tmp_path)  # no repository at all
    assert run_cli(group, ["report", str(run_directory), str(other.root), "--out", "both.html"]) == 0
    text = Path("both.html").read_text(encoding="utf-8")
    assert f"run-{runs.RUN_ID}-round-1" in text and "run-20250102-030406-round-1" in text and "hidden: 33" in text
    assert run_cli(group, ["watch", str(other.root)]) == 0
    assert run_cli(group, ["export", str(other.root), "--format", "csv", "--out", "x.csv"]) == 0
    capsys.readouterr()
    assert run_cli(group, ["report", str(run_directory), str(same.root)]) == 2
    assert "another run has the same id" in capsys.readouterr().err
    assert run_cli(group, ["report", str(run_directory), f"{run_directory}/"]) == 0


def test_watch_and_export_of_a_finished_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["watch", runs.RUN_ID]) == 0
    assert "Verified front" in capsys.readouterr().out
    assert run_cli(group, ["export", runs.RUN_ID, "--format", "csv", "--out", "x.csv"]) == 0
    assert capsys.readouterr().out.strip() == "x.csv" and (workspace / "x.csv").is_file()


@pytest.mark.parametrize(
    "argv",
    [
        ["report"],
        ["report", "20990101-000000"],
        ["report", "../../etc"],
        ["report", ".."],
        ["report", "runs"],
        ["report", runs.RUN_ID, "--out", "."],
        ["report", runs.RUN_ID, "--serve", "--out", "x"],
        ["report", runs.RUN_ID, "--format", "gif"],
        ["watch", "nothing"],
        ["export", runs.RUN_ID],
        ["export", runs.RUN_ID, "--format", "xlsx"],
        ["export", runs.RUN_ID, "--format", "csv", "--out", "runs"],
    ],
)
def test_invalid_input_is_one_error(workspace: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    before = sorted(path for path in workspace.rglob("*") if ".git" not in path.parts)
    assert run_cli(group, argv) == 2
    error_output = capsys.readouterr().err
    check_error(error_output, hint=True)
    assert "\\n" not in error_output and "\\t" not in error_output
    assert sorted(path for path in workspace.rglob("*") if ".git" not in path.parts) == before


def test_damaged_run_is_one_error(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = workspace / "runs" / runs.RUN_ID / "history.jsonl"
    history.write_bytes(b"{]\n" + history.read_bytes())
    for argv in (["report", runs.RUN_ID], ["watch", runs.RUN_ID], ["export", runs.RUN_ID, "--format", "csv"]):
        assert run_cli(group, argv) == 3
        assert "history.jsonl:1" in capsys.readouterr().err
