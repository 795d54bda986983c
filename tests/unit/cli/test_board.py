"""`autoqec board`: show, measure, add, add-decoder, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.board.decoders import BUILTIN
from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from tests.support.shown import check_error

CIRCUIT = "surface_d3_z_depol_p0.005"
DECODER = """
import numpy as np, sinter
class Zero(sinter.Decoder):
    def compile_decoder_for_dem(self, *, dem):
        return self
    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data):
        return np.zeros((len(bit_packed_detection_event_data), 1), np.uint8)
def decoders():
    return {"zero": Zero()}
"""


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*argv: str) -> int:
    return run_cli(group, ["board", *argv])


def test_decoder_of_the_current_directory_is_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_decoders.py").write_text(DECODER)
    assert call("add-decoder", "my_decoders:decoders") == 0
    assert call("measure", CIRCUIT, "zero", "--shots", "1000") == 0
    capsys.readouterr()
    assert call("show", "--circuit", CIRCUIT, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (mine,) = [row for row in rows if row["decoder"] == "zero"]
    assert mine["shots"] == 1000 and mine["state"] == "measured" and mine["decoder_version"] is None
    assert call("measure", CIRCUIT, "zero", "--shots", "1000", "--again", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["reproduced_blocks"] == 1 and again["failures"] == mine["failures"]


def test_every_format_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("measure", CIRCUIT, "mwpm*", "--shots", "1000", "--parallel", "1") == 0
    for form in ("csv", "json", "sinter-csv", "html"):
        assert call("export", "--format", form, "--out", f"board.{form}") == 0
        assert "mwpm_correlated" in (tmp_path / f"board.{form}").read_text()
    capsys.readouterr()
    assert call("export", "--format", "json") == 0
    assert {row["circuit"] for row in json.loads(capsys.readouterr().out)} >= {CIRCUIT}


def test_cells_that_no_decoder_could_fill_are_not_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "--circuit", "bb72_depol_p0.002") == 0
    shown = capsys.readouterr().out
    assert f"of {len(BUILTIN) - 1} cells measured" in shown, (
        "neither a model in the package nor gnn-decoders decodes bb72"
    )


def test_registry_formats_are_exported_for_selected_circuits(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", "--format", "circuit-bench", "--circuit", CIRCUIT) == 0
    names = list(json.loads(capsys.readouterr().out)["results"])
    assert f"{CIRCUIT}--mwpm.json" in names and all(name.startswith(f"{CIRCUIT}--") for name in names)
    assert call("export", "--format", "qldpc-challenge") == 2
    check_error(capsys.readouterr().err, "no circuits are called CODE_x and CODE_z", hint=True)


def test_interrupt_exits_130_and_names_the_way_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autoqec.board.measure.measure_cells", interrupt)
    assert call("measure", CIRCUIT, "mwpm") == 130
    check_error(capsys.readouterr().err, "blocks that were measured are kept", hint=True)


@pytest.mark.parametrize(
    "argv",
    [
        ("measure", "no_such_circuit", "mwpm"),
        ("measure", CIRCUIT, "no_such_decoder"),
        ("measure", CIRCUIT, "mwpm", "--parallel", "100000"),
        ("show", "--circuit", "no_such_circuit"),
        ("add", "missing.stim"),
        ("add-decoder", "missing_module:decoders"),
        ("add-decoder", "not a name"),
        ("add-decoder", "json:missing_function"),
        ("add-decoder", "json:dumps"),
        ("export", "--format", "csv", "--out", "missing/board.csv"),
    ],
)
def test_bad_input_exits_2_with_hint(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*argv) == 2
    check_error(capsys.readouterr().err, "", hint=True)
    assert not Path("board").exists()


def test_circuit_without_observables_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.stim").write_text("M 0\nDETECTOR rec[-1]\n")
    assert call("add", "c.stim") == 2
    check_error(capsys.readouterr().err, "0 observables", hint=True)
