"""Exports, read back by the tools they are written for."""

from __future__ import annotations

import csv
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import UsageError
from autoqec.reporting.export import export
from autoqec.store import train_log
from autoqec.store.train_log import TrainLog
from tests.support import runs


def test_csv_contains_every_row_and_key(tmp_path: Path) -> None:
    layout = runs.make_run(
        tmp_path / "workspace", 4, change=lambda row: row | {"hypothesis": "=cmd|' /C calc'!A0\n\ud800,\""}
    )
    path = export(layout, "csv")
    assert path == layout.exports / "history.csv"
    lines = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    rows = runs.rows(layout)
    assert [line["round"] for line in lines] == ["1", "2", "3", "4"] and set(lines[0]) == set(rows[0])
    assert lines[0]["hypothesis"].startswith("'=cmd") and "\\ud800" in lines[0]["hypothesis"]
    assert json.loads(lines[0]["dsl_config"]) == rows[0]["dsl_config"] and lines[3]["delta_ler"] == ""
    assert float(lines[0]["delta_ler"]) == rows[0]["delta_ler"]


def test_csv_without_rounds_is_its_header(tmp_path: Path) -> None:
    path = export(runs.make_run(tmp_path / "workspace", 0), "csv", tmp_path / "new" / "x.csv")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_sinter_reads_its_csv(tmp_path: Path) -> None:
    import sinter

    layout = runs.make_run(tmp_path / "workspace", 6)
    path = export(layout, "sinter-csv")
    stats = {(stat.decoder, stat.json_metadata["p"]): stat for stat in sinter.read_stats_from_csv_files(path)}
    verified_rounds = [row["round"] for row in runs.rows(layout) if row["verify_verdict"]]
    assert {name for name, _ in stats} == {"mwpm", "mwpm_correlated", *(f"mwpm+round{n}" for n in verified_rounds)}
    assert stats["mwpm+round1", 0.005].errors == 950 and stats["mwpm+round1", 0.005].shots == runs.SHOTS
    # A decoder compared with two others on the same shots is counted once.
    assert stats["mwpm+round1", 0.003].errors == 200 and stats["mwpm+round1", 0.003].shots == runs.SHOTS
    assert stats["mwpm_correlated", 0.003].errors == 240 * len(verified_rounds)
    # One baseline on the shots of three verifications is one line: sinter added them up.
    assert stats["mwpm", 0.005].shots == len(verified_rounds) * runs.SHOTS
    assert stats["mwpm", 0.005].json_metadata == {"env": "surface_d5_depol", "p": 0.005, "d": 5, "r": 5}


def test_sinter_plots_its_csv(tmp_path: Path) -> None:
    path = export(runs.make_run(tmp_path / "workspace", 6), "sinter-csv")
    program = Path(sys.executable).with_name("sinter")
    if not program.exists():
        pytest.skip("the command `sinter` is missing beside this Python; install: pip install sinter")
    picture = tmp_path / "plot.png"
    argv = ["plot", "--in", str(path), "--out", str(picture), "--x_func", "m.p", "--group_func", "decoder"]
    subprocess.run([program, *argv, "--xaxis", "[log]p"], check=True, capture_output=True, env={**os.environ})
    assert picture.stat().st_size > 1000


needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed; pip install tensorboard"
)
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed; pip install wandb"
)


@pytest.mark.parametrize("form", ["tensorboard", "wandb"])
def test_missing_package_is_one_error(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"'{form}' is not installed.*pip install 'autoqec\[{form}\]'"):
        export(layout, form)
    # A directory that a tracker wrote to the current directory is not its package.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    with pytest.raises(UsageError, match="is not installed"):
        export(layout, form)
    assert not layout.exports.exists()


@needs_tensorboard
def test_tensorboard_reads_its_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    layout = runs.make_run(tmp_path / "workspace", 2)
    directory = export(layout, "tensorboard")
    events = EventAccumulator(str(directory / "round_1"), size_guidance={"scalars": 0})
    events.Reload()
    assert len(events.Scalars("loss")) == 1000
    assert events.Scalars("round/delta_ler")[0].value == pytest.approx(runs.rows(layout)[0]["delta_ler"])
    assert events.Scalars("round/holdout_errors")[0].value == 950
    with pytest.raises(UsageError, match="not an empty directory"):
        export(layout, "tensorboard")


def wandb_records(directory: Path) -> list[Any]:
    """Read the records of a `.wandb` file, which wandb would send (LevelDB's log format after a header of 7 bytes)."""
    from wandb.proto import wandb_internal_pb2

    (path,) = directory.glob("*.wandb")
    data, block, offset = path.read_bytes(), 32768, 7
    assert data[:4] == b":W&B"
    found, parts = [], b""
    while offset < len(data):
        left = block - offset % block
        if left < 7:
            offset += left
            continue
        size, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        parts += data[offset + 7 : offset + 7 + size]
        offset += 7 + size
        if kind in (1, 4):  # a full record, or the last fragment
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


@needs_wandb
def test_wandb_reads_its_offline_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")  # a user's online mode for other projects is not used here
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    hostile = "=<script>\ud800\x1b[2J"
    layout = runs.make_run(
        tmp_path / "workspace", 2, change=lambda row: row | {"hypothesis": hostile, "dsl_config": {hostile: hostile}}
    )
    before = dict(os.environ)
    directory = export(layout, "wandb")
    assert dict(os.environ) == before
    made = sorted(path for path in directory.iterdir())
    assert [path.name.rpartition("-20250102")[2] for path in made] == ["-030405-round_1", "-030405-round_2"]
    records = wandb_records(made[0])
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.run_group, run.run_id) == ("autoqec", runs.RUN_ID, f"{runs.RUN_ID}-round_1")
    assert run.host == "autoqec" and "<script>" in run.notes and "\x1b" not in run.notes
    losses = [
        json.loads(item.value_json)
        for record in records
        for item in record.history.item
        if "loss" in (item.key, *item.nested_key)
    ]
    assert len(losses) == 1000 and losses[0] == pytest.approx(15.1)
    summary = {
        item.key or item.nested_key[0]: json.loads(item.value_json)
        for record in records
        for item in record.summary.update
    }
    assert summary["delta_ler"] == pytest.approx(runs.rows(layout)[0]["delta_ler"])
    assert summary["outcome"] == "VERIFIED" and summary["holdout_errors"] == 950
    assert not any(path.name in ("logs", "requirements.txt", "latest-run") for path in directory.rglob("*"))
    with pytest.raises(UsageError, match="not an empty directory"):
        export(layout, "wandb")


@pytest.mark.parametrize("form", [pytest.param("tensorboard", marks=needs_tensorboard)])
def test_failed_export_leaves_no_file(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    monkeypatch.setattr(train_log, "read", lambda path: TrainLog(((0, 0.5), (1, "no number"))))  # type: ignore[arg-type]
    with pytest.raises(Exception, match="no number|not implemented|NoneType|float"):
        export(layout, form)
    assert list(layout.exports.iterdir()) == []


def test_directory_as_the_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        export(runs.make_run(tmp_path / "workspace", 1), "csv", tmp_path)
