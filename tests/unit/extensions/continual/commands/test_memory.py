"""`autoqec memory`: rounds of earlier runs are imported once, and shown as notes for a language model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from tests.support.runs import make_run, rows


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def test_rounds_are_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = make_run(tmp_path / "workspace", 6, artifacts=False), tmp_path / "memory.jsonl"
    argv = ["memory", str(file), "--json", "--env", "smoke"]
    assert run_cli(group, [*argv, "--import", str(run.root)]) == 0
    first, held = printed(capsys)
    assert first["rounds"] == held["entries"] == len(rows(run)) == 6
    assert any("verifier: VERIFIED" in note for note in held["notes"])
    assert any("train_error" in note for note in held["notes"])
    assert run_cli(group, [*argv, "--import", str(run.history)]) == 0
    assert [line.get("rounds") for line in printed(capsys)] == [0, None]
    assert run_cli(group, [*argv]) == 0 and printed(capsys)[0]["entries"] == 6


@pytest.mark.parametrize("wrong", ["nowhere", "workspace"])
def test_invalid_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = make_run(tmp_path / "workspace", 2), tmp_path / "memory.jsonl"
    monkeypatch.chdir(tmp_path / "workspace")
    assert run_cli(group, ["memory", str(file), "--import", str(run.root), "--import", str(tmp_path / wrong)]) == 2
    assert "hint:" in capsys.readouterr().err and not file.exists()


def test_missing_memory_file_suggests_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["memory", str(tmp_path / "none.jsonl")]) == 2
    assert "--import RUN" in capsys.readouterr().err
