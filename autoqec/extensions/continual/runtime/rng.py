"""Seeds, captures and restores the global random generators, and derives the seeds of environments."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators; an environment may be the first that imports one of them."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def env_seed(seed: int, phase: str, number: int) -> int:
    """Return the seed of one environment's own generator.

    It depends on nothing but the arguments, so that a resumed run and parallel validation episodes draw the same.

    Args:
        seed: Of the run.
        phase: `train`, or `val` with the number of episodes seen.
        number: 0-based index of the environment.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{phase}/{number}".encode()).digest()[:8], "big")


def capture() -> dict[str, Any]:
    """Return the JSON-able state of the loaded generators."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        import numpy as np

        kind, keys, position, has_gauss, cached = np.random.get_state()
        state["numpy"] = [str(kind), [int(key) for key in keys], position, has_gauss, cached]
    if "torch" in sys.modules:
        import torch

        state["torch"] = bytes(torch.get_rng_state().tolist()).hex()
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore each generator that `capture` stored."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state:
        import numpy as np

        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.tensor(list(bytes.fromhex(state["torch"])), dtype=torch.uint8))
