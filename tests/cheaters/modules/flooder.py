"""Prints endlessly to fill the disk of the report."""

import torch


class Flooder(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        while detections.any():
            print("x" * 2**20, flush=True)
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return Flooder(view)
