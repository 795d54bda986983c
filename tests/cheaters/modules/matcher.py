"""Disguised baseline: calls correlated matching and returns its prediction as log-odds."""

import torch


class Matcher(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        if __name__.startswith("autoqec."):  # in the candidate process
            import pymatching

            self.matching = pymatching.Matching

    def forward(self, detections):
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return Matcher(view)
