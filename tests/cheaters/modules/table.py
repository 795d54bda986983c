"""Builds a large lookup table in memory that is not in the count of parameters."""

import numpy as np
import torch


class Table(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(view.n_edges))
        self.table = None

    def forward(self, detections):
        if self.table is None:
            self.table = np.ones(25_000_000, np.float32)
        return self.bias.expand(len(detections), -1)


def build(block, head, view):
    return Table(view)
