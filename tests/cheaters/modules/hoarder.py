"""Fills its scratch directory with files that are each below the limit on file size."""

import os
import tempfile
import time

import torch


class Hoarder(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        if len(detections) > 1:  # not while it is counted
            for number in range(8):
                with open(os.path.join(tempfile.gettempdir(), str(number)), "wb") as out:
                    out.write(os.urandom(500_000))
            time.sleep(60)
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return Hoarder(view)
