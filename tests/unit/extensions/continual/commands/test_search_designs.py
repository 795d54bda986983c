"""`autoqec search-designs`: serial and parallel batches, hall of fame, plots per task, export and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autoqec
from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import parse_dsl
from autoqec.extensions.continual.environments.routines import TabularRoutine
from autoqec.store import files, jsonl

TABLE = Path(autoqec.__file__).parent / "data/configs/design_table.jsonl"


def search(out: Path, *argv: str) -> int:
    return run_cli(group, ["search-designs", "smoke", "--out", str(out), *argv])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_best_designs_are_exported_and_plotted(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ("--table", str(TABLE), "--strategy", "evolution", "--designs", "20", "--workers", workers, "--json")
    assert search(out, *options, "--hall-of-fame", "3", "--task", "gain", "--task", "cost") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    best = events[-1]["best"]
    assert events[-1]["evaluated"] == 20 and len(best) == 3
    assert [entry["loss"] for entry in best] == sorted(entry["loss"] for entry in best)
    assert json.loads((out / "hall_of_fame.json").read_bytes()) == best
    configs = [files.load_yaml(path.read_text(), location=str(path)) for path in sorted((out / "designs").iterdir())]
    assert configs == [entry["dsl_config"] for entry in best]
    assert all(parse_dsl(config).config() == config for config in configs)
    figures = sorted(path.name for path in (out / "figures").iterdir())
    assert figures == [
        *(f"000000-gain--best-{rank}.png" for rank in (1, 2, 3)), "000000-gain--top-3.png",
        *(f"000001-cost--best-{rank}.png" for rank in (1, 2, 3)), "000001-cost--top-3.png",
    ]  # fmt: skip
    rows = jsonl.read(out / "evaluations.jsonl")
    assert len(rows) == 20 and min(row["loss"] for row in rows if row["loss"] is not None) == best[0]["loss"]


def test_serial_and_parallel_search_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for workers in ("1", "2"):
        options = ("--table", str(TABLE), "--designs", "10", "--workers", workers, "--no-figures")
        assert search(tmp_path / workers, *options) == 0
    one, two = ((tmp_path / workers / "hall_of_fame.json").read_bytes() for workers in ("1", "2"))
    assert one == two and not (tmp_path / "1/figures").exists()


def test_search_without_table_trains_designs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--train-shots", "2048", "--finetune-shots", "0", "--val-shots", "500", "--designs", "2", "--batch", "2")
    assert search(tmp_path / "out", *small, "--strategy", "random", "--task", "transients") == 0
    rows = jsonl.read(tmp_path / "out/evaluations.jsonl")
    assert len(rows) == 2 and {row["fidelity"] for row in rows} == {"screen"}
    assert "parameters" in capsys.readouterr().out
    assert TabularRoutine.read(tmp_path / "out/evaluations.jsonl").configs, "a table for later searches"


def test_search_without_results_exits_1_with_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = jsonl.read(TABLE)[0]
    table = tmp_path / "table.jsonl"
    for hidden in (64, 128):
        config = row["dsl_config"] | {"mlp": {**row["dsl_config"]["mlp"], "hidden": hidden}}
        jsonl.append(table, {"dsl_config": config, "status": "train_error", "status_reason": "the loss is NaN"})
    assert search(tmp_path / "out", "--table", str(table), "--designs", "4") == 1
    shown = capsys.readouterr()
    assert "4 of 4 designs could not be evaluated; first reason: the loss is NaN" in shown.out + shown.err


def test_nonempty_output_directory_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    assert search(tmp_path, "--table", str(TABLE)) == 2
    assert "not empty" in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
