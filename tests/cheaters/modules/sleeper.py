"""Sleeper: no work for the empty shot that a careless count uses, full work for every other shot."""

import torch


class Sleeper(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        self.first = torch.nn.Linear(view.n_detectors, 256)
        self.last = torch.nn.Linear(256, view.n_edges)
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def forward(self, detections):
        if not detections.any():
            return torch.zeros(len(detections), self.n_edges)
        return self.last(torch.relu(self.first(detections)))


def build(block, head, view):
    return Sleeper(view)
