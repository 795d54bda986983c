"""Exports for public registries, validated against copies of their schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stim

from autoqec.errors import UsageError
from autoqec.extensions.board.circuits import add_circuit, load_circuits
from autoqec.extensions.board.decoders import load_decoders
from autoqec.extensions.board.export import to_circuit_bench, to_qldpc_challenge
from autoqec.extensions.board.results import Cell, cells
from autoqec.store.layout import BoardLayout
from tests.unit.extensions.board.test_results import measurement

SCHEMAS = Path(__file__).parent / "schemas"
ENOUGH: dict[str, Any] = {
    "decoder": "bposd_cs10_qldpc", "block_shots": 5000, "failures": (60, 65), "fixed": None, "broken": None
}  # fmt: skip


def check_schema(text: str, name: str, directory: Path) -> None:
    """Check a text with check-jsonschema."""
    (directory / "export.json").write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMAS / f"{name}.json")]
    found = subprocess.run([*command, str(directory / "export.json")], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_circuit_bench_gets_counts_and_no_invented_ids(tmp_path: Path) -> None:
    conflict = measurement(decoder="e"), measurement(decoder="e", failures=(1, 2))
    none: dict[str, Any] = {"first_block": 2, "failures": (), "fixed": (), "broken": (), "status": "timeout"}
    hung = measurement(decoder="h"), measurement(decoder="h", **none)
    text = to_circuit_bench(cells([measurement(), *conflict, *hung]))
    check_schema(text, "circuit-bench", tmp_path)
    results = json.loads(text)["results"]
    assert list(results) == ["c--d.json"], "conflicts and failed cells have no full population of shots"
    result = results["c--d.json"]
    counts = [result[f"{name}_shots"] for name in ("successful", "logical_failure", "timeout", "decoder_error")]
    assert counts == [1970, 30, 0, 0] and result["shots_total"] == sum(counts)
    assert result["latency_shots"] == 0 and result["t_1000_ns"] is None, "CPU time of a block is no latency"
    assert not {"machine", "decoder_version", "circuit_revision", "evaluator_version", "scores"} & set(result)
    assert "a" * 64 in result["description"] and json.loads(result["software_environment"]) == {"stim": "1.16.0"}


def test_circuit_bench_takes_at_most_200_results() -> None:
    table = cells(measurement(decoder=f"d{number}") for number in range(201))
    assert len(json.loads(to_circuit_bench(table[:200]))["results"]) == 200
    with pytest.raises(UsageError, match="201 results"):
        to_circuit_bench(table)
    with pytest.raises(UsageError, match="0 results"):
        to_circuit_bench([])


def code(board: BoardLayout, tmp_path: Path, *, p: float = 0.001, swapped: bool = False) -> dict[str, str]:
    """Add the memory circuits s_x and s_z of a surface code; return their hashes by name."""
    found = {}
    for basis in "xz":
        task = f"surface_code:rotated_memory_{'zx'['xz'.index(basis)] if swapped else basis}"
        circuit = stim.Circuit.generated(task, distance=3, rounds=3, after_clifford_depolarization=p)
        path = tmp_path / f"s_{basis}.stim"
        path.write_text(str(circuit))
        found[path.stem] = add_circuit(path, board, name=None, rounds=3).sha256
    return found


def measured(hashes: dict[str, str], **changes: Any) -> list[Cell]:
    values = {**ENOUGH, **changes}
    return cells(measurement(circuit=name, circuit_sha256=sha, **values) for name, sha in hashes.items())


def test_qldpc_challenge_gets_both_bases(board: BoardLayout, tmp_path: Path) -> None:
    table = measured(code(board, tmp_path))
    text = to_qldpc_challenge(load_circuits(board), table, board)
    check_schema(text, "qldpc-challenge", tmp_path)
    sides = json.loads(text)["s"]
    assert set(sides) == {"X", "Z"} and sides["X"] == sides["Z"]
    # its verifier's formulas for 125 failures in 10,000 shots of 3 rounds
    assert (sides["X"]["ler_per_round"], sides["X"]["ci95"]) == (0.004201879, [0.003525472, 0.005007442])
    assert (sides["X"]["failures"], sides["X"]["shots"], sides["X"]["seed"]) == (125, 10_000, 0)


@pytest.mark.parametrize(
    ("changes", "circuit", "reason"),
    [
        ({"failures": (50, 49)}, {}, "99 failures in 10000 shots"),
        ({"block_shots": 1000, "failures": (60, 65)}, {}, "125 failures in 2000 shots"),
        ({"decoder": "bposd_cs10"}, {}, "not measured with bposd_cs10_qldpc"),
        ({"seed": None}, {}, "not measured with one seed"),
        ({"status": "timeout"}, {}, "not measured with bposd_cs10_qldpc"),
        ({"rounds": 3}, {"p": 0.002}, "does not have the rate 0.001 throughout"),
        ({"rounds": 3}, {"swapped": True}, "last measurement is not in basis X"),
    ],
)
def test_qldpc_challenge_refuses_what_its_tier_does_not_accept(
    board: BoardLayout, tmp_path: Path, changes: dict[str, Any], circuit: dict[str, Any], reason: str
) -> None:
    table = measured(code(board, tmp_path, **circuit), **changes)
    with pytest.raises(UsageError, match=reason):
        to_qldpc_challenge(load_circuits(board), table, board)


def test_decoder_of_the_challenge_is_on_the_board(board: BoardLayout) -> None:
    assert "bposd_cs10_qldpc" in load_decoders(board)
    with pytest.raises(UsageError, match="no circuits are called CODE_x and CODE_z"):
        to_qldpc_challenge(load_circuits(board), [], board)
