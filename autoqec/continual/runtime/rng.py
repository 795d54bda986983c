"""Seeds, captures and restores the global random generators."""

from __future__ import annotations

import random
import sys
from typing import Any


def seed_all(seed: int) -> None:
    """Python's, and numpy's and torch's where they are loaded."""
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(seed)
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(seed)


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
