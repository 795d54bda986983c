from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.extensions.board.circuits import load_circuits
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.store import layout
from autoqec.store.layout import PACKAGED_BOARD, BoardLayout

EMPTY = BoardLayout(Path("/nonexistent"))


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoardLayout:
    """A board without the packaged measurements; the packaged circuits are known."""
    empty = BoardLayout(tmp_path / "packaged")
    (tmp_path / "packaged").mkdir()
    (tmp_path / "packaged" / "circuits.jsonl").write_bytes(PACKAGED_BOARD.circuits.read_bytes())
    for module in ("autoqec.extensions.board.circuits", "autoqec.extensions.board.results", layout.__name__):
        monkeypatch.setattr(f"{module}.PACKAGED_BOARD", empty)
    return BoardLayout(tmp_path / "board")


@pytest.fixture
def circuit() -> BoardCircuit:
    return load_circuits(EMPTY)["surface_d3_z_depol_p0.005"]
