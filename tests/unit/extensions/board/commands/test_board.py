"""`autoqec board`: show, measure, add, add-decoder, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.events import ignore
from autoqec.extensions.board.circuits import load_circuits
from autoqec.extensions.board.contracts import BoardDecoder
from autoqec.extensions.board.decoders import BUILTIN
from autoqec.extensions.board.results import read_measurements, table_of_cells
from autoqec.models import load_models, unpack_archive
from autoqec.orchestrator import archive as archive_module
from autoqec.store.layout import PACKAGED_BOARD
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
def clashing():
    return {"alpha": Zero(), "mwpm": Zero(), "union_find": Zero()}
def no_decoders():
    return {"zero": Zero(), "three": 3}
def a_class():
    return Zero
def empty():
    return {}
def needs_argument(x):
    return Zero()
def reads_file():
    open("weights.txt").close()
    return Zero()
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
    assert call("measure", CIRCUIT, "zero", "--shots", "1000") == 0
    assert "Nothing to measure: board/results.jsonl has these shots" in capsys.readouterr().err


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
    assert f"of {len(BUILTIN)} cells measured" in shown, "a packaged model decodes bb72, gnn-decoders does not"


def test_missing_cells_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "--circuit", CIRCUIT, "--json") == 0
    measured = {json.loads(line)["decoder"] for line in capsys.readouterr().out.splitlines()}
    Path("board").mkdir()
    Path("board/decoders.jsonl").write_text(BoardDecoder(name="mine", source="my:f").model_dump_json() + "\n")
    assert call("show", "--circuit", CIRCUIT, "--missing", "--json") == 0
    shown = capsys.readouterr()
    missing = {json.loads(line)["decoder"] for line in shown.out.splitlines()}
    assert "mine" in missing and not missing & measured
    assert shown.err.startswith(f"{CIRCUIT}: ")


@pytest.mark.parametrize(("argv", "near"), [(("surface_d3_z", "mwpm"), CIRCUIT), ((CIRCUIT, "bposd"), "bposd0")])
def test_unknown_name_shows_similar_ones(argv: tuple[str, str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("measure", *argv) == 2
    check_error(capsys.readouterr().err, "perhaps", near, hint=True)


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

    monkeypatch.setattr("autoqec.extensions.board.measure.measure_cells", interrupt)
    assert call("measure", CIRCUIT, "mwpm") == 130
    check_error(capsys.readouterr().err, "blocks that were measured are kept", hint=True)


def test_names_that_other_decoders_have_are_all_told_and_nothing_is_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_decoders.py").write_text(DECODER)
    assert call("add-decoder", "my_decoders:clashing") == 2
    error, _ = check_error(capsys.readouterr().err, "autoqec.extensions.board.builtin:decoders", hint=True)
    assert "'mwpm'" in error and "'union_find'" in error and "alpha" not in error
    assert not Path("board").exists()
    assert call("add-decoder", "my_decoders:decoders") == call("add-decoder", "my_decoders:decoders") == 0
    capsys.readouterr()
    assert call("add-decoder", "my_decoders:decoders", "--sandbox") == 2
    check_error(capsys.readouterr().err, "'zero'", "without the sandbox", "board/decoders.jsonl", hint=True)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_decoders", "'three' is of type int, not a sinter.Decoder"),
        ("a_class", "the class Zero, not an instance"),
        ("empty", "an empty dict"),
        ("needs_argument", "missing 1 required positional argument"),
    ],
)
def test_function_that_returns_no_decoders_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], function: str, message: str
) -> None:
    (tmp_path / "my_decoders.py").write_text(DECODER)
    assert call("add-decoder", f"my_decoders:{function}") == 2
    check_error(capsys.readouterr().err, message, "called without arguments", hint=True)
    assert not Path("board").exists()


def test_function_finds_files_of_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "my_decoders.py").write_text(DECODER)
    (tmp_path / "weights.txt").touch()
    assert call("add-decoder", "my_decoders:reads_file") == 0


@pytest.mark.parametrize("flag", [(), ("--sandbox",)])
def test_packaged_models_are_not_added_again(flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("add-decoder", "autoqec.sinter:decoders", *flag) == 2
    reason = "the sandbox hides" if flag else "no VERIFIED round in runs/"
    check_error(capsys.readouterr().err, reason, hint=True)
    assert not Path("board").exists()


def test_verified_round_is_measured_where_its_run_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_models()["surface_d3_z"]
    monkeypatch.setattr(archive_module, "_verify_rounds", lambda *_: iter(()))  # tested elsewhere
    archive = unpack_archive(model.name, tmp_path / "run.tar")
    archive_module.replay_archive(archive, tmp_path / "restored", on_event=ignore)
    monkeypatch.chdir(tmp_path / "restored")
    name = f"autoqec:{model.run_id}:{model.round}"
    for _ in range(2):
        assert call("add-decoder", "autoqec.sinter:decoders") == 0
        assert capsys.readouterr().out == f"{name}\n", "neither the packaged models nor mwpm_correlated"
    assert call("measure", "surface_d[35]_z_depol_p0.005", f"autoqec:*{model.round}", "--shots", "1000", "--json") == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["circuit"] == CIRCUIT, "another distance than that of the run does not apply"
    packaged = table_of_cells(load_circuits(PACKAGED_BOARD), read_measurements(PACKAGED_BOARD.results))
    (cell,) = [cell for cell in packaged if (cell.circuit, cell.decoder) == (CIRCUIT, f"autoqec:{model.name}")]
    assert row["failures"] == cell.measurements[0].failures[0], "the model is this round"
    assert row["decoder_version"] == cell.version
    monkeypatch.chdir(tmp_path)
    assert call("measure", CIRCUIT, name, "--dir", "restored/board", "--shots", "2000") == 2
    check_error(capsys.readouterr().err, f"run {model.run_id} is not in runs/", hint=True)
    packaged_line = _lines(capsys, "show", "--circuit", CIRCUIT)[-1]
    total, others = _lines(capsys, "show", "--circuit", CIRCUIT, "--dir", "restored/board")[-2:]
    assert total == packaged_line, "a cell that cannot be measured here is none of those that can"
    assert others.startswith("1 further cell of decoders that cannot be measured here") and others.endswith(name)
    assert not any(name in line for line in _lines(capsys, "show", "--missing", "--dir", "restored/board"))
    monkeypatch.chdir(tmp_path / "restored")
    assert "further cell" not in _lines(capsys, "show", "--circuit", CIRCUIT)[-1]


def _lines(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    capsys.readouterr()
    assert call(*argv) == 0
    return capsys.readouterr().out.splitlines()


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
