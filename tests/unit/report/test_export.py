"""Exports that other tools open."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoqec.errors import InputError
from autoqec.report.export import export
from tests.support import runs


def test_csv_holds_every_row_and_key(tmp_path: Path) -> None:
    layout = runs.made_run(
        tmp_path / "lab", 4, change=lambda row: row | {"hypothesis": "=cmd|' /C calc'!A0\n\ud800,\""}
    )
    path = export(layout, "csv")
    assert path == layout.exports / "history.csv"
    lines = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    rows = runs.rows(layout)
    assert [line["round"] for line in lines] == ["1", "2", "3", "4"] and set(lines[0]) == set(rows[0])
    assert lines[0]["hypothesis"].startswith("'=cmd") and "\\ud800" in lines[0]["hypothesis"]
    assert json.loads(lines[0]["dsl_config"]) == rows[0]["dsl_config"] and lines[3]["delta_ler"] == ""
    assert float(lines[0]["delta_ler"]) == rows[0]["delta_ler"]


def test_csv_of_no_rounds_is_its_head(tmp_path: Path) -> None:
    path = export(runs.made_run(tmp_path / "lab", 0), "csv", tmp_path / "new" / "x.csv")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_sinter_reads_its_csv(tmp_path: Path) -> None:
    import sinter

    layout = runs.made_run(tmp_path / "lab", 6)
    path = export(layout, "sinter-csv")
    stats = {(one.decoder, one.json_metadata["p"]): one for one in sinter.read_stats_from_csv_files(path)}
    judged = [row["round"] for row in runs.rows(layout) if row["verify_verdict"]]
    assert {name for name, _ in stats} == {"mwpm", "mwpm_correlated", *(f"mwpm+round{n}" for n in judged)}
    assert stats["mwpm+round1", 0.005].errors == 950 and stats["mwpm+round1", 0.005].shots == runs.SHOTS
    # One panel member on the shots of three judgements is one line: sinter added them up.
    assert stats["mwpm", 0.005].shots == len(judged) * runs.SHOTS
    assert stats["mwpm", 0.005].json_metadata == {"env": "surface_d5_depol", "p": 0.005, "d": 5, "r": 5}


def test_sinter_plots_its_csv(tmp_path: Path) -> None:
    path = export(runs.made_run(tmp_path / "lab", 6), "sinter-csv")
    program = Path(sys.executable).with_name("sinter")
    if not program.exists():
        pytest.skip("the command `sinter` is not installed beside this Python")
    picture = tmp_path / "plot.png"
    argv = ["plot", "--in", str(path), "--out", str(picture), "--x_func", "m.p", "--group_func", "decoder"]
    subprocess.run([program, *argv, "--xaxis", "[log]p"], check=True, capture_output=True, env={**os.environ})
    assert picture.stat().st_size > 1000


def test_tensorboard_reads_its_events(tmp_path: Path) -> None:
    layout = runs.made_run(tmp_path / "lab", 2)
    if importlib.util.find_spec("tensorboard") is None:
        with pytest.raises(InputError, match="pip install tensorboard"):
            export(layout, "tensorboard")
        assert not layout.exports.exists()
        pytest.skip("the tensorboard package is not installed: that one is told so was tested, the files were not")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = export(layout, "tensorboard")
    events = EventAccumulator(str(directory / "round_1"), size_guidance={"scalars": 0})
    events.Reload()
    assert len(events.Scalars("loss")) == 1000
    assert events.Scalars("round/delta_ler")[0].value == pytest.approx(runs.rows(layout)[0]["delta_ler"])
    with pytest.raises(InputError, match="not an empty directory"):
        export(layout, "tensorboard")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        export(runs.made_run(tmp_path / "lab", 1), "csv", tmp_path)
