"""Answers depend on process and clock, so that two runs differ."""

import os

import torch


class Clock(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        self.seed = int.from_bytes(os.urandom(4), "big")

    def forward(self, detections):
        noise = torch.Generator().manual_seed(self.seed)
        return (0.05 * torch.randn(self.n_edges, generator=noise)).expand(len(detections), -1)


def build(block, head, view):
    return Clock(view)
