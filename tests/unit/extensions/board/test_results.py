"""Files of a board: circuits, results, and the table that they give."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sinter
import stim

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.board import export
from autoqec.extensions.board.circuits import add_circuit, load_circuit, load_circuits
from autoqec.extensions.board.contracts import BoardCircuit, BoardMeasurement
from autoqec.extensions.board.decoders import load_decoders
from autoqec.extensions.board.export import HEIGHT, LABEL_HEIGHT, MARGIN, page, plot
from autoqec.extensions.board.results import (
    advice,
    append_measurement,
    board_measurements,
    cell_line,
    cells,
    measurement_line,
    missing_cells,
    pareto_front,
    read_measurements,
    table_lines,
)
from autoqec.models import load_models
from autoqec.qec.stats import clopper_pearson, per_round
from autoqec.store.layout import PACKAGED_BOARD, BoardLayout
from benchmarks import board_circuits


def measurement(**changes: Any) -> BoardMeasurement:
    values: dict[str, Any] = {
        "circuit": "c", "circuit_sha256": "a" * 64, "dem_sha256": "b" * 64, "rounds": 3, "decoder": "d",
        "decoder_source": "m:f", "decoder_version": "m 1", "sandboxed": False, "status": "ok", "message": None,
        "seed": 0,
        "first_block": 0, "block_shots": 1000, "failures": (10, 20), "fixed": (4, 6), "broken": (1, 2), "cpu_s": 0.004,
        "reference_cpu_s": 0.002, "machine": "cpu", "packages": {"stim": "1.16.0"}, "commit": None, "measured_at": None,
    }  # fmt: skip
    return BoardMeasurement(**{**values, **changes})


def test_packaged_circuits_are_those_of_the_generator() -> None:
    assert PACKAGED_BOARD.circuits.read_text() == board_circuits.text()
    found = load_circuits(PACKAGED_BOARD)
    assert len(found) >= 40 and len({spec.sha256 for spec in found.values()}) == len(found)


def test_packaged_results_belong_to_packaged_circuits() -> None:
    circuits = load_circuits(PACKAGED_BOARD)
    for item in read_measurements(PACKAGED_BOARD.results):
        assert circuits[item.circuit].sha256 == item.circuit_sha256 and circuits[item.circuit].rounds == item.rounds


def test_packaged_cells_of_models_are_of_the_packaged_weights() -> None:
    models = {f"autoqec:{name}": model.checkpoint_sha256[:12] for name, model in load_models().items()}
    shown = [cell for cell in cells(read_measurements(PACKAGED_BOARD.results)) if cell.decoder.startswith("autoqec:")]
    earlier = [
        (cell.circuit, cell.decoder)
        for cell in shown
        if f"(checkpoint {models.get(cell.decoder)})" not in str(cell.version)
    ]
    assert shown and not earlier, "measure these again with `autoqec board measure`, or remove their lines"


def test_circuit_with_another_hash_is_rejected(board: BoardLayout, circuit: BoardCircuit) -> None:
    with pytest.raises(UsageError, match="is not the pinned circuit"):
        load_circuit(circuit.model_copy(update={"p": 0.006}), board)


def test_added_circuit_is_read_again(board: BoardLayout, tmp_path: Path) -> None:
    path = tmp_path / "mine.stim"
    path.write_text("X_ERROR(0.1) 0\nM 0\nDETECTOR rec[-1]\nOBSERVABLE_INCLUDE(0) rec[-1]\n")
    spec = add_circuit(path, board, name=None, rounds=None)
    assert spec.name == "mine" and add_circuit(path, board, name=None, rounds=None) == spec
    assert load_circuit(load_circuits(board)["mine"], board) == stim.Circuit(path.read_text())
    assert len(board.circuits.read_text().splitlines()) == 1
    path.write_text("X_ERROR(0.2) 0\nM 0\nDETECTOR rec[-1]\nOBSERVABLE_INCLUDE(0) rec[-1]\n")
    with pytest.raises(UsageError, match=r"already has a circuit 'mine', with hash"):
        add_circuit(path, board, name=None, rounds=None)
    board.circuit(spec.sha256).write_text(path.read_text())
    with pytest.raises(UsageError, match="is not the pinned circuit"):
        load_circuit(spec, board)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M 0\nDETECTOR rec[-1]\n", "has 1 detector and 0 observables"),
        ("M 0\nOBSERVABLE_INCLUDE(0) rec[-1]\n", "has 0 detectors and 1 observable"),
        ("H 0\nM 0\nDETECTOR rec[-1]\nOBSERVABLE_INCLUDE(0) rec[-1]\n", "cannot compute its detector error model"),
        ("NOT_A_GATE 0\n", "is not a stim circuit"),
    ],
)
def test_unusable_circuit_is_not_added(board: BoardLayout, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.stim"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        add_circuit(path, board, name=None, rounds=None)
    assert error.value.hint and not board.circuits.exists()


def test_unknown_schema_is_refused(board: BoardLayout) -> None:
    append_measurement(board, measurement())
    board.results.write_text(board.results.read_text() + json.dumps({"schema_version": 2}) + "\n")
    with pytest.raises(ContractError, match=r"results.jsonl:2: unknown schema_version 2"):
        board_measurements(board)


@pytest.mark.parametrize("line", ["not json", "[1]", '{"schema_version":1,"circuit":"c"}'])
@pytest.mark.parametrize("name", ["results", "circuits", "decoders"])
def test_damaged_line_is_an_error_that_says_what_to_do(board: BoardLayout, name: str, line: str) -> None:
    board.dir.mkdir()
    path: Path = getattr(board, name)
    path.write_text(line + "\n")
    with pytest.raises(ContractError) as error:
        {"results": board_measurements, "circuits": load_circuits, "decoders": load_decoders}[name](board)
    assert error.value.location == f"{path}:1"
    assert error.value.hint == f"restore {path} from a backup, or delete the line"


def test_packaged_board_as_directory_is_read_once(board: BoardLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    append_measurement(board, measurement())
    monkeypatch.setattr("autoqec.extensions.board.results.PACKAGED_BOARD", board)
    monkeypatch.chdir(board.dir)
    assert len(board_measurements(BoardLayout(Path(".")))) == 1


def test_torn_last_line_is_ignored_and_moved_away(board: BoardLayout) -> None:
    append_measurement(board, measurement())
    with board.results.open("a") as stream:
        stream.write('{"schema_version":1,"circ')
    assert read_measurements(board.results) == [measurement()]
    append_measurement(board, measurement(first_block=2))
    assert [item.first_block for item in read_measurements(board.results)] == [0, 2]
    (torn,) = (board.dir / "salvage").iterdir()
    assert torn.read_text() == '{"schema_version":1,"circ'


def test_conflicting_measurements_are_both_kept_and_shown(board: BoardLayout) -> None:
    for item in (measurement(), measurement(failures=(10, 21), machine="other")):
        append_measurement(board, item)
    found = board_measurements(board)
    (cell,) = cells(found)
    assert len(found) == 2 and cell.state == "conflict" and (cell.conflicts, cell.reproduced) == (1, 1)
    assert cell.rate is not None and cell.rate.errors == 30, "the first measurement"
    assert "CONFLICT: measurements of the same shots differ in 1 block" in cell_line(cell)
    assert pareto_front([cell]) == [] and len(export.to_sinter_csv([cell]).splitlines()) == 1
    assert json.loads(export.to_json([cell]))[0]["conflicting_blocks"] == 1


@pytest.mark.parametrize(
    ("failures", "fixed", "state"),
    [
        ((2,) * 5, (1, 1, 1, 1, 0), "measured"),  # 10 failures in 8 parts; the last three have none
        ((2,) * 5 + (0, 0, 0), (1, 1, 1, 1, 0, 0, 0, 0), "measured"),
        ((2,) * 5 + (0, 0, 1), (1, 1, 1, 1, 0, 0, 0, 0), "conflict"),  # 11 failures
        ((2, 2, 2, 2, 3), (1, 1, 1, 1, 0), "conflict"),
        ((1,) * 8, (1, 1, 1, 1, 0, 0, 0, 0), "conflict"),  # 8 failures in the whole block
        ((2,) * 5, (1,) * 5, "conflict"),
    ],
)
def test_parts_of_a_measured_block_are_compared_with_it(
    failures: tuple[int, ...], fixed: tuple[int, ...], state: str
) -> None:
    broken = (1,) + (0,) * (len(failures) - 1)
    parts = measurement(block_shots=125, failures=failures, fixed=fixed, broken=broken)
    for order in ([measurement(), parts], [parts, measurement()]):
        (cell,) = cells(order)
        assert cell.rate is not None and (cell.rate.errors, cell.rate.shots) == (30, 2000), "the block counts once"
        assert cell.state == state


def test_parts_beside_other_blocks_are_counted() -> None:
    parts = measurement(block_shots=125, first_block=16, failures=(1, 2), fixed=(0, 0), broken=(0, 0))
    (cell,) = cells([measurement(), parts])
    assert cell.rate is not None and (cell.rate.errors, cell.rate.shots) == (33, 2250)


def test_figures_of_a_cell() -> None:
    (cell,) = cells([measurement(), measurement(first_block=2, cpu_s=0.006, reference_cpu_s=0.003)])
    assert cell.rate is not None and cell.effect is not None
    assert (cell.rate.errors, cell.rate.shots, cell.rate.rate) == (60, 4000, 0.015)
    assert (cell.rate.low, cell.rate.high) == clopper_pearson(60, 4000)
    assert (cell.per_round_low, cell.per_round_high) == tuple(per_round(end, 3) for end in clopper_pearson(60, 4000))
    assert cell.effect.counts.errors_reference == 60 + 20 - 6 and cell.effect.delta == pytest.approx(14 / 4000)
    assert cell.us_per_shot == pytest.approx(2.5) and cell.relative_time == pytest.approx(2.0)


def test_cell_with_few_failures_says_that_100_need_more_shots(circuit: BoardCircuit) -> None:
    few, many = (cells([measurement(failures=counts)])[0] for counts in ((10, 20), (50, 50)))
    assert "30/2000 (100 failures need > 2,000 shots)" in cell_line(few)
    assert "100/2000 " in cell_line(many) and "> 2,000" not in cell_line(many)
    text = page({"c": circuit.model_copy(update={"sha256": "a" * 64})}, [few])
    assert "30/2000<br><small>(100 failures need &gt; 2,000 shots)</small>" in text


def test_line_of_a_cell_shows_the_rate_per_round() -> None:
    (cell,) = cells([measurement()])
    low, high = (per_round(end, 3) for end in clopper_pearson(30, 2000))
    assert f"per round {per_round(0.015, 3):.2e} [{low:.2e}, {high:.2e}]" in cell_line(cell)
    assert "per round" not in cell_line(cells([measurement(rounds=None)])[0])


def test_other_version_of_a_decoder_is_not_added_up() -> None:
    (cell,) = cells([measurement(), measurement(decoder_version="m 2", failures=(1, 2), fixed=None, broken=None)])
    assert cell.version == "m 2" and cell.rate is not None and cell.rate.errors == 3 and cell.effect is None


def test_unknown_rounds_give_no_rate_per_round() -> None:
    (cell,) = cells([measurement(rounds=None)])
    row = export.to_row(cell)
    assert row["ler_per_round"] is None and row["ler_per_round_low"] is None and row["ler_per_shot"] == 0.015


def test_failure_after_some_blocks_keeps_their_counts() -> None:
    (cell,) = cells([measurement(), measurement(first_block=2, failures=(), fixed=(), broken=(), status="timeout")])
    assert cell.state == "timeout" and cell.rate is not None and cell.rate.shots == 2000
    assert export.to_row(cell)["timeouts"] == 1 and export.to_row(cell)["decoder_failures"] == 0


def test_timeout_gives_way_to_a_later_success_and_stays_counted() -> None:
    none: dict[str, Any] = {"first_block": 2, "failures": (), "fixed": (), "broken": (), "message": "no answer"}
    later = measurement(first_block=2)
    (cell,) = cells([measurement(), measurement(**none, status="timeout"), later])
    assert (cell.state, cell.message, export.to_row(cell)["timeouts"]) == ("measured", None, 1)
    (cell,) = cells([later, measurement(**none, status="timeout")])
    assert (cell.state, cell.message) == ("timeout", "no answer")
    (cell,) = cells([measurement(), measurement(**none, status="inconsistent"), later])
    assert cell.state == "inconsistent", "another success does not undo changed answers"


@pytest.mark.parametrize("change", [{"fixed": (4,)}, {"broken": None}, {"failures": (10, 1001)}])
def test_counts_that_contradict_each_other_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="differ in length|lies outside"):
        measurement(**change)


def test_exports_can_be_read_again(tmp_path: Path) -> None:
    table = cells([measurement(), measurement(decoder="e", failures=(0, 0), fixed=None, broken=None)])
    rows = list(csv.DictReader(io.StringIO(export.to_csv(table))))
    assert [(row["decoder"], row["failures"], row["delta"]) for row in rows] == [("d", "30", "0.0035"), ("e", "0", "")]
    (tmp_path / "stats.csv").write_text(export.to_sinter_csv(table))
    stats = sinter.read_stats_from_csv_files(tmp_path / "stats.csv")
    assert [(item.decoder, item.shots, item.errors) for item in stats] == [("d", 2000, 30), ("e", 2000, 0)]
    assert stats[0].json_metadata["circuit"] == "c"


def test_pareto_front_drops_what_another_cell_beats() -> None:
    def cell(decoder: str, failures: int, cpu_s: float) -> BoardMeasurement:
        return measurement(decoder=decoder, failures=(failures,), fixed=None, broken=None, cpu_s=cpu_s)

    table = cells(
        [cell("slow_good", 5, 1.0), cell("fast_bad", 50, 0.1), cell("slow_bad", 60, 2.0), cell("mid", 20, 0.5)]
    )
    assert [item.decoder for item in pareto_front(table)] == ["fast_bad", "mid", "slow_good"]


def test_times_of_different_machines_are_compared_relative_to_correlated_matching() -> None:
    """The slower machine takes 9 µs for what the faster one does in 3 µs."""
    table = cells(
        [
            measurement(decoder="fast_machine", failures=(50, 50), cpu_s=0.006, reference_cpu_s=0.006),
            measurement(decoder="slow_machine", failures=(60, 60), cpu_s=0.009, reference_cpu_s=0.018),
        ]
    )
    assert [item.decoder for item in pareto_front(table)] == ["slow_machine", "fast_machine"]
    assert advice(table)[0].endswith(": slow_machine (1 of 1 circuit).")
    mixed = cells([*table[0].measurements, measurement(decoder="mixed", cpu_s=0.009, fixed=None, broken=None,
                                                       reference_cpu_s=None, failures=(60, 60))])  # fmt: skip
    assert [item.decoder for item in pareto_front(mixed)] == ["fast_machine"], "one cell has no ratio"


def test_labels_of_a_plot_do_not_cover_each_other() -> None:
    times = (0.002, 0.0021, 0.0022, 0.0023, 2.0)
    table = cells([measurement(decoder=f"decoder_{index}", cpu_s=time) for index, time in enumerate(times)])
    found = plot("c", table)
    assert found is not None
    for number, first in enumerate(found.points):
        assert 0 <= first.label_y <= HEIGHT - MARGIN
        for second in found.points[:number]:
            apart = abs(first.label_y - second.label_y) >= LABEL_HEIGHT
            assert apart or abs(first.x - second.x) > 100, "about the width of a label"
    assert [point.label_end for point in found.points] == [False] * 4 + [True], "the last one would leave the plot"


def test_advice_has_five_lines_from_measured_cells_only(circuit: BoardCircuit) -> None:
    better: dict[str, Any] = {"failures": (100, 90), "fixed": (40, 50), "broken": (1, 2)}
    table = cells(
        [
            measurement(**better, cpu_s=0.002),
            measurement(**better, decoder="slow", cpu_s=0.006),
            measurement(decoder="e", status="error"),
        ]
    )
    lines = advice(table)
    assert len(lines) == 5 and not any("e (" in line for line in lines)
    assert lines[1].endswith(": d (1 of 1 circuit)."), "the other one takes three times as long as correlated matching"
    few = cells([measurement(failures=(100, 90)), measurement(decoder="f", failures=(3, 4))])
    assert advice(few)[2].endswith(": none measured."), "the best cell has 7 failures: nothing is decided"
    unmatched: dict[str, Any] = {"fixed": None, "broken": None, "reference_cpu_s": None}
    other = cells([measurement(**unmatched, failures=(60, 60)), measurement(**unmatched, decoder="f")])
    assert advice(other)[3].endswith(": none measured.")
    enough = cells(
        [measurement(**unmatched, failures=(60, 60)), measurement(**unmatched, decoder="f", failures=(70, 70))]
    )
    assert advice(enough)[3].endswith(": d (1 of 1 circuit).")
    assert all(line.endswith(": none measured.") for line in advice([])[:4])
    assert "circuits without any: c" in "\n".join(table_lines({"c": circuit}, table, {"c": []}))


def test_advice_names_the_first_five_decoders_of_a_list() -> None:
    table = cells(
        [
            measurement(circuit=name, circuit_sha256=str(index) * 64, decoder=decoder, cpu_s=cpu_s)
            for index, name in enumerate("abcdefg")
            for decoder, cpu_s in ((f"d{index}", 0.001), ("slower", 0.002))
        ]
    )
    names = "d0 (1 of 7 circuits), d1 (1), d2 (1), d3 (1), d4 (1)"
    assert advice(table)[0].endswith(f": {names}, and 2 other decoders.")


def test_table_is_aligned_and_explains_its_columns(circuit: BoardCircuit) -> None:
    spec = circuit.model_copy(update={"sha256": "a" * 64})
    table = cells([measurement(), measurement(decoder="autoqec:a_long_name_of_a_decoder")])
    lines = table_lines({"c": spec}, table, {"c": ["d", "autoqec:a_long_name_of_a_decoder"]})
    assert lines[1].index("1.500e-02") == lines[2].index("1.500e-02")
    assert "Δ: failures of correlated matching minus those of the decoder" in " ".join(lines)
    assert lines[-1] == "2 of 2 cells measured"


def test_missing_cells_are_those_that_apply_and_have_no_measurement(circuit: BoardCircuit) -> None:
    spec = circuit.model_copy(update={"sha256": "a" * 64})
    table = cells([measurement(), measurement(decoder="failed", status="error", failures=(), fixed=(), broken=())])
    assert missing_cells({"c": spec}, table, {"c": ["d", "e", "failed"]}) == {"c": ["e"]}
    assert missing_cells({"c": spec}, table, {"c": ["d"]}) == {}


def test_failed_measurement_without_shots_has_no_count() -> None:
    failed = measurement(status="wrong_shape", message="returned 3", failures=(), fixed=(), broken=())
    assert measurement_line(failed) == "c d: wrong shape: returned 3"
    late = measurement(status="timeout", message="no answer within 5 s")
    assert measurement_line(late) == "c d: 30 failures in 2,000 shots, then timeout: no answer within 5 s"
