"""The circuits of the packaged decoder board: `python -m benchmarks.board_circuits` writes circuits.jsonl.

A circuit keeps its name and hash for ever; new ones are added at the end.
"""

from __future__ import annotations

import json
from typing import Any

from autoqec.extensions.board.circuits import circuit_sha256, generate
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.store import atomic
from autoqec.store.layout import PACKAGED_BOARD

# l x m, and the exponents of the polynomials (Bravyi et al., Nature 627, 778, 2024)
BICYCLES = {
    "bb72": {"width": 6, "height": 6, "a": [[3, 0], [0, 1], [0, 2]], "b": [[0, 3], [1, 0], [2, 0]], "rounds": 6},
    "bb144": {"width": 12, "height": 6, "a": [[3, 0], [0, 1], [0, 2]], "b": [[0, 3], [1, 0], [2, 0]], "rounds": 12},
}
NOISE = {"depol": "circuit_depolarizing", "si1000": "si1000", "biased": "circuit_biased"}


def stim_code(task: str, distance: int, rounds: int | None = None) -> dict[str, Any]:
    return {"kind": "stim_generator", "task": task, "distance": distance, "rounds": rounds or distance}


def parameters() -> list[tuple[str, dict[str, Any], str, float, float | None]]:
    """Return name without noise, code, noise, physical error rate and bias of every circuit."""
    z, x = "surface_code:rotated_memory_z", "surface_code:rotated_memory_x"
    uniform = [(3, 0.003), (3, 0.005), (5, 0.003), (5, 0.005), (7, 0.003), (7, 0.005), (9, 0.005), (11, 0.005)]
    found: list[tuple[str, dict[str, Any], str, float, float | None]] = [
        (f"surface_d{d}_z", stim_code(z, d), "depol", p, None) for d, p in uniform
    ]
    found += [(f"surface_d{d}_x", stim_code(x, d), "depol", 0.005, None) for d in (3, 5, 7)]
    found += [(f"surface_d{d}_x", stim_code(x, d), "si1000", p, None) for d in (3, 5, 7, 9, 11) for p in (0.001, 0.002)]
    found += [(f"surface_d{d}_x", stim_code(x, d), "biased", 0.005, 100.0) for d in (3, 5, 7)]
    found += [
        (f"surface_d{d}_z_r{r}", stim_code(z, d, r), "depol", 0.003, None) for d, r in ((3, 30), (3, 100), (5, 50))
    ]
    found += [
        (f"repetition_d{d}", stim_code("repetition_code:memory", d), "depol", 0.03, None) for d in (3, 5, 7, 9, 11)
    ]
    found += [
        (f"colour_d{d}", stim_code("color_code:memory_xyz", d), noise, p, None)
        for d in (3, 5, 7)
        for noise, p in (("depol", 0.003), ("si1000", 0.001))
    ]
    bicycle = [("bb72", "depol", 0.002), ("bb72", "depol", 0.003), ("bb72", "si1000", 0.001), ("bb72", "si1000", 0.002)]
    bicycle += [("bb144", "depol", 0.003), ("bb144", "si1000", 0.002)]
    found += [
        (name, {"kind": "bivariate_bicycle", "basis": "z", **BICYCLES[name]}, noise, p, None)
        for name, noise, p in bicycle
    ]
    longer = ((5, 15), (5, 50), (7, 21), (7, 70))  # three and ten times as many rounds as the distance
    found += [(f"surface_d{d}_z_r{r}", stim_code(z, d, r), "depol", 0.005, None) for d, r in longer]
    found += [(f"surface_d{d}_z", stim_code(z, d), "depol", p, None) for d, p in ((9, 0.003), (13, 0.005))]
    return found + [(f"surface_d{d}_z", stim_code(z, d), "si1000", 0.002, None) for d in (3, 5, 7, 9)]


def circuits() -> list[BoardCircuit]:
    """Generate and hash every circuit."""
    found = []
    for name, code, noise, p, eta in parameters():
        spec = {"name": f"{name}_{noise}_p{p:g}", "rounds": code["rounds"], "code": code, "noise": NOISE[noise], "p": p}
        unpinned = BoardCircuit.model_validate({**spec, "eta": eta, "sha256": "0" * 64})
        found.append(unpinned.model_copy(update={"sha256": circuit_sha256(generate(unpinned))}))
    return found


def text() -> str:
    """Return circuits.jsonl."""
    return "".join(json.dumps(spec.dump(), separators=(",", ":")) + "\n" for spec in circuits())


if __name__ == "__main__":
    atomic.write_text(PACKAGED_BOARD.circuits, text())
