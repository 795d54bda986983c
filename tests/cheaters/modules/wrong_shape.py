"""Answers with one edge too many."""

import torch


class Wide(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        return torch.zeros(len(detections), self.n_edges + 1)


def build(block, head, view):
    return Wide(view)
