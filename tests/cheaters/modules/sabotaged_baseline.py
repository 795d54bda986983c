"""Makes the baseline decoder fail, so that doing nothing looks like a gain."""

from pathlib import Path

import numpy as np
import torch

import autoqec
from autoqec.qec import backends


def sabotage():
    """Patch the decoder in this process."""
    honest = backends.Mwpm.decode

    def spoiled(self, detection_events):
        answers = honest(self, detection_events)
        return answers ^ (np.asarray(detection_events, np.int64).sum(1) % 7 == 3)[:, None]

    backends.Mwpm.decode = spoiled


def sabotage_for_good():
    """Try to patch the package, for the next process."""
    for name in ("qec/backends.py", "verification/session.py"):
        try:
            with (Path(autoqec.__file__).parent / name).open("a") as out:
                out.write("")
        except OSError:
            continue
        raise RuntimeError("the trusted package is writable")


class Idle(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        if __name__.startswith("autoqec."):  # in the candidate process, not in the test that builds it
            sabotage()
            sabotage_for_good()

    def forward(self, detections):
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return Idle(view)
