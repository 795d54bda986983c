"""Keeps 300 MB of numbers in a closure of a large net, so that its honest work could hide them."""

import numpy as np
import torch


class Large(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.first = torch.nn.Linear(view.n_detectors, 256)
        self.shared = torch.nn.Linear(256, 256)
        self.last = torch.nn.Linear(256, view.n_edges)
        self.look_up = table() if __name__.startswith("autoqec.") else None

    def forward(self, detections):
        state = self.first(detections)
        for _ in range(40):  # five MFLOP with few parameters
            state = torch.relu(self.shared(state))
        return self.last(state)


def table():
    numbers = np.ones(75_000_000, np.float32)

    def look_up(place):
        return numbers[place]

    return look_up


def build(block, head, view):
    return Large(view)
