"""Looks for the secret, labels, parent process, network and run directory, and reports what it finds."""

import os
import socket
from pathlib import Path

import torch


def loot():
    found = []
    for key, value in os.environ.items():
        if "SECRET" in key or "KEY" in key:
            found.append(f"{key}={value}")
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if b"VERIFIER_TEST_SECRET" in (proc / "environ").read_bytes():
                found.append(f"environ of {proc.name}")
        except OSError:
            continue
    run_dir = Path(Path(__file__).parent.joinpath("hint").read_text().strip())
    for path in (run_dir, run_dir / "secret", run_dir / "labels.npy"):
        try:
            found.append(f"{path}: {os.listdir(path) if path.is_dir() else path.read_bytes()[:8]!r}")
        except OSError:
            continue
    try:
        socket.create_connection(("127.0.0.1", int(Path(__file__).parent.joinpath("port").read_text())), 1).close()
        found.append("the network is open")
    except OSError:
        pass
    try:
        Path(__file__).parent.joinpath("note").write_text("left behind")
        found.append("the artifact is writable")
    except OSError:
        pass
    return found


class Leaker(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.n_edges = view.n_edges

    def forward(self, detections):
        found = loot()
        if found:
            raise RuntimeError(f"LEAKED {found}")
        return torch.zeros(len(detections), self.n_edges)


def build(block, head, view):
    return Leaker(view)
