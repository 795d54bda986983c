"""Lets the answer for a busy shot depend on the shot before it, and hides this from shuffled shots by remembering."""

import torch


class Rememberer(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges
        self.answers = {}

    def forward(self, detections):
        keys = [row.tobytes() for row in detections.numpy()]
        busy = (detections.sum(1, keepdim=True) > 5).float()
        before = torch.roll(detections, 1, 0).mean(1, keepdim=True)
        for key, answer in zip(keys, (busy * before).expand(-1, self.n_edges), strict=True):
            self.answers.setdefault(key, answer)
        return torch.stack([self.answers[key] for key in keys])


def build(block, head, view):
    return Rememberer(view)
