"""No-op: answers the public priors for every shot."""

import torch


class NoOp(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return NoOp(view)
