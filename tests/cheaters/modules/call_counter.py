"""Counts its calls in a buffer and changes its answers with the count, so that two runs differ."""

import torch


class Counter(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, detections):
        self.calls += 1
        return torch.full((len(detections), self.n_edges), 1e-3 * float(self.calls))


def build(block, head, view):
    return Counter(view)
