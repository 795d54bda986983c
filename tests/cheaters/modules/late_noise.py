"""Answers alike in every process at first, and with a coin toss of its own process after some thousand shots."""

import os

import torch

FIRST = 6_000


class LateNoise(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        self.coin = int.from_bytes(os.urandom(2), "big") / 10**6
        self.seen = 0

    def forward(self, detections):
        self.seen += len(detections)
        return torch.full((len(detections), self.n_edges), self.coin if self.seen > FIRST else 0.0)


def build(block, head, view):
    return LateNoise(view)
