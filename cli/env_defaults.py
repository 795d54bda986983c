"""Default seeds and baselines of envs that commands create."""

from __future__ import annotations

from autoqec.contracts.env import GRAPH_BACKENDS

SEED_BANDS = {
    "train": [0, 999_999_999],
    "val": [1_000_000_000, 1_999_999_999],
    "holdout": [2_000_000_000, 2_999_999_999],
}


def default_baselines(backend: str) -> list[str]:
    """Return the baselines of an env that names none."""
    return [*GRAPH_BACKENDS] if backend == "mwpm" else ["bposd_cs10"]
