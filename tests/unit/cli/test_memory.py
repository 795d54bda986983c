"""`autoqec memory`: older runs into one file, each round once, and what a model would be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from tests.support.runs import make_run, rows


def said(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def test_a_runs_history_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = make_run(tmp_path / "lab", 6, artifacts=False), tmp_path / "memory.jsonl"
    argv = ["memory", str(file), "--json", "--env", "smoke"]
    assert run_cli(group, [*argv, "--import", str(run.root)]) == 0
    first, held = said(capsys)
    assert first["rounds"] == held["entries"] == len(rows(run)) == 6
    assert any("verifier: VERIFIED" in note for note in held["notes"])
    assert any("train_error" in note for note in held["notes"])
    assert run_cli(group, [*argv, "--import", str(run.history)]) == 0
    assert [one.get("rounds") for one in said(capsys)] == [0, None]
    assert run_cli(group, [*argv]) == 0 and said(capsys)[0]["entries"] == 6


@pytest.mark.parametrize("wrong", ["nowhere", "lab"])
def test_what_is_no_run_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = make_run(tmp_path / "lab", 2), tmp_path / "memory.jsonl"
    monkeypatch.chdir(tmp_path / "lab")
    assert run_cli(group, ["memory", str(file), "--import", str(run.root), "--import", str(tmp_path / wrong)]) == 2
    assert "hint:" in capsys.readouterr().err and not file.exists()


def test_a_memory_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["memory", str(tmp_path / "none.jsonl")]) == 2
    assert "--import RUN" in capsys.readouterr().err
