"""Decoders of the packaged board that learn: from other shots, or before they were packaged."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import stim

from autoqec.errors import UsageError
from autoqec.extensions.board import builtin
from autoqec.extensions.board.circuits import Model, add_circuit, generate, load_circuits
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.extensions.board.decoders import BUILTIN, GNN, fits, load_decoders
from autoqec.extensions.board.measure import Plan, measure_cells
from autoqec.extensions.board.results import read_measurements
from autoqec.qec.problem import read_mechanisms
from autoqec.qec.sampling import pack, unpack
from autoqec.store.layout import BoardLayout


def test_every_listed_decoder_is_built_under_its_name() -> None:
    assert list(builtin.decoders()) == list(BUILTIN)


def test_probabilities_are_estimated_from_shots_that_no_measurement_draws(
    circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, int]] = []
    sample = Model.sample
    monkeypatch.setattr(
        Model, "sample", lambda self, seed, block: drawn.append((seed, block)) or sample(self, seed, block)
    )
    model = Model.of(generate(circuit), location="test")
    estimated = builtin._estimated(model.dem)
    assert drawn == [(-1, block) for block in range(100)], "the option --seed is at least 0"
    probs, mechanisms = read_mechanisms(estimated)
    assert [*map(str, mechanisms)] == [*map(str, read_mechanisms(model.dem)[1])]
    assert (probs != model.probs).any()
    # Detection fractions follow the estimate: their errors are of the size that 100,000 shots leave.
    rates = [(1 - np.exp(model.H @ np.log1p(-2 * values))) / 2 for values in (probs, model.probs)]
    assert (abs(rates[0] - rates[1]) < 6 * np.sqrt(rates[1] / 100_000)).all()


def test_estimated_model_is_measured_and_needs_a_matching_graph(board: BoardLayout, circuit: BoardCircuit) -> None:
    decoder = load_decoders(board)["mwpm_estimated"]
    colour = load_circuits(board)["colour_d5_depol_p0.003"]
    measure_cells(board, [(circuit, decoder), (colour, decoder)], Plan(1000))
    found, refused = read_measurements(board.results)
    assert found.status == "ok" and "100,000 other shots" in (found.decoder_version or "")
    assert refused.status == "error" and "flips" in (refused.message or "")


def test_trained_network_applies_only_to_the_circuits_that_it_was_trained_on(board: BoardLayout) -> None:
    circuits, decoder = load_circuits(board), load_decoders(board)[GNN]
    assert {name for name, spec in circuits.items() if fits(decoder, spec)} == {
        "surface_d3_z_depol_p0.003", "surface_d3_z_depol_p0.005", "surface_d5_z_depol_p0.003",
        "surface_d5_z_depol_p0.005", "surface_d7_z_depol_p0.003", "surface_d7_z_depol_p0.005",
    }  # fmt: skip
    assert not fits(decoder, BoardCircuit(name="mine", sha256="a" * 64, rounds=3))


@pytest.mark.parametrize(("name", "invariant"), [("surface_family", True), ("surface_d3_z", False)])
def test_translation_invariant_models_apply_to_circuits_from_files(
    name: str, invariant: bool, board: BoardLayout, tmp_path: Path
) -> None:
    """Whether it is a circuit of their code shows when they decode it."""
    decoder = load_decoders(board)[f"autoqec:{name}"]
    circuits = {
        "mine": stim.Circuit.generated(
            "surface_code:rotated_memory_z", distance=3, rounds=5, after_clifford_depolarization=0.005
        ),
        "other": stim.Circuit.generated(
            "repetition_code:memory", distance=3, rounds=3, before_round_data_depolarization=0.05
        ),
    }
    for key, each in circuits.items():
        each.to_file(tmp_path / f"{key}.stim")
        spec = add_circuit(tmp_path / f"{key}.stim", board, name=None, rounds=None)
        assert fits(decoder, spec) == invariant
        if invariant:
            measure_cells(board, [(spec, decoder)], Plan(1000))
    if invariant:
        mine, other = read_measurements(board.results)
        assert mine.status == "ok" and sum(mine.failures) < 20
        assert other.status == "error" and "no class of edges" in (other.message or "")


def test_sector_decoders_use_the_detectors_of_one_sector(board: BoardLayout) -> None:
    """Their answers do not depend on the other sector, and they fail less often than joint decoding."""
    spec = load_circuits(board)["bb72_depol_p0.003"]
    model = Model.of(generate(spec), location="test")
    last = np.array([value[-1] for _, value in sorted(model.dem.get_detector_coordinates().items())])
    events = model.sample_part(0, 0).detection_events
    other = unpack(events, len(last))
    other[:, last == 0] ^= 1
    for name in ("bposd_cs10_sector", "bplsd0_sector"):
        decode = builtin.decoders()[name].compile_decoder_for_dem(dem=model.dem).decode_shots_bit_packed
        found = decode(bit_packed_detection_event_data=events)
        assert (found == decode(bit_packed_detection_event_data=pack(other.astype(bool)))).all()
        wrong = (unpack(found, model.L.shape[0]) != model.sample_part(0, 0).observables).any(axis=1)
        assert wrong.mean() < 0.15, "joint BP+LSD-0 fails on 26% of the shots"


def test_sector_decoders_apply_to_bicycle_codes_only(board: BoardLayout) -> None:
    circuits, decoder = load_circuits(board), load_decoders(board)["bplsd0_sector"]
    assert {name[:4] for name, spec in circuits.items() if fits(decoder, spec)} == {"bb72", "bb14"}
    assert fits(decoder, BoardCircuit(name="mine", sha256="a" * 64, rounds=3)), "a file shows it when it is decoded"


@pytest.mark.parametrize("coordinates", ["", "(1, 2)"])
def test_circuit_without_sectors_is_refused(coordinates: str) -> None:
    circuit = stim.Circuit(f"""
        X_ERROR(0.1) 0 1
        M 0 1
        DETECTOR{coordinates} rec[-1]
        DETECTOR(3, 4) rec[-2]
        OBSERVABLE_INCLUDE(0) rec[-1]
        OBSERVABLE_INCLUDE(1) rec[-2]
    """)
    with pytest.raises(UsageError, match=r"no last coordinate of detectors names a sector .* every observable"):
        builtin.decoders()["bplsd0_sector"].compile_decoder_for_dem(dem=circuit.detector_error_model())


@pytest.mark.skipif(find_spec("gnn_decoders") is None, reason="install: pip install gnn-decoders")
def test_trained_network_beats_chance(board: BoardLayout, circuit: BoardCircuit) -> None:
    measure_cells(board, [(circuit, load_decoders(board)[GNN])], Plan(1000))
    (found,) = read_measurements(board.results)
    flipped = int(Model.of(generate(circuit), location="test").sample(0, 0).observables.sum())
    assert found.status == "ok" and found.failures[0] < flipped / 2
