"""Takes over its process and sends forged messages: a network of one parameter and -1 FLOPs."""

import gc
import io
import json
import sys

import torch

from autoqec.verification.candidate import protocol


def account(view):
    for model in gc.get_objects():  # hashes of an honest message
        if type(model).__name__ == "Problem":
            return {"circuit_sha256": model.circuit_sha256, "dsl_sha256": "0" * 64, "n_params": 1}
    return {}


def take_over(view):
    out = next(stream for stream in gc.get_objects() if isinstance(stream, io.BufferedWriter) and stream.fileno() > 2)
    out.write(protocol.pack(protocol.MODEL_INFO, json.dumps(account(view) | {"flops_per_syndrome": -1}).encode()))
    out.flush()
    width = -(-view.n_detectors // 8)
    while header := sys.stdin.buffer.read(protocol.HEADER.size):
        n = len(sys.stdin.buffer.read(protocol.HEADER.unpack(header)[1])) // width
        out.write(protocol.pack(protocol.LOG_ODDS, view.log_odds.repeat(n, 1).numpy().tobytes()))
        out.flush()
    raise SystemExit


class Forger(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        if __name__.startswith("autoqec."):
            take_over(view)


def build(block, head, view):
    return Forger(view)
