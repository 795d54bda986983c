"""Lets the answer for a shot depend on the previous shots of the batch."""

import torch


class Neighbours(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        before = torch.roll(detections, 1, 0).mean(1, keepdim=True)
        return 0.5 * before.expand(-1, self.n_edges)


def build(block, head, view):
    return Neighbours(view)
