"""The candidate's process: `python -m autoqec.verification.candidate.process`. Detection events in, log-odds out.

It is started inside the sandbox and holds a copy of the checkpoint and nothing of the judge: no label, no seed, no
secret, no run directory. Frames arrive on stdin; answers leave on a descriptor of their own, because stdout is
pointed at stderr before any code of the search surface is imported: its prints can't garble an answer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders import checkpoint, flops, overlay
from autoqec.decoders.base import Predecoder
from autoqec.errors import AutoqecError, ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack
from autoqec.store.files import parse_env
from autoqec.verification.candidate import decoder_libraries, protocol

BATCH = 1_024  # shots through the net at once: bounds memory whatever the net


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    torch.set_num_threads(1)
    try:
        tag, payload = receive(requests)
        if tag != protocol.SPEC:
            raise ContractError(f"the first frame is {tag!r}, not SPEC")
        model, n_detectors, model_info = build_model(json.loads(payload))
    except Exception as error:
        send(answers, protocol.ERROR, encode_error(error))
        return
    send(answers, protocol.MODEL_INFO, json.dumps(model_info).encode())
    while True:
        tag, payload = receive(requests)
        if tag != protocol.DATA:
            return
        try:
            send(answers, protocol.LOG_ODDS, infer_log_odds(model, payload, n_detectors))
        except Exception as error:  # whatever the branch's code raises costs this chunk, not the judgement
            send(answers, protocol.ERROR, encode_error(error))


def build_model(spec: dict[str, Any]) -> tuple[Predecoder, int, dict[str, Any]]:
    """The net, its number of detectors, and what the judge wants to know of it."""
    decoder_libraries.block()
    overlay.use_modules_dir(spec["modules_dir"])
    problem = Problem.from_env(parse_env(spec["env_text"], location="env"))
    model, dsl = checkpoint.load(Path(spec["checkpoint"]), problem)
    round_dsl = parse_dsl(spec["dsl_config"])
    if dsl.sha256() != round_dsl.sha256():
        raise ContractError(
            f"checkpoint holds config {dsl.sha256()[:12]}, the round's config is {round_dsl.sha256()[:12]}",
            location="checkpoint.pt",
            hint="judge the round with its own config.yaml",
        )
    cost = flops.count(model, problem.n_detectors)
    model_info = {
        "circuit_sha256": problem.circuit_sha256,
        "dsl_sha256": dsl.sha256(),
        "n_params": cost.n_params,
        "flops_per_syndrome": cost.flops_per_syndrome,
    }
    return model, problem.n_detectors, model_info


def infer_log_odds(model: Predecoder, packed: bytes, n_detectors: int) -> bytes:
    """Log-odds of every shot, float32 [n, n_edges] as bytes."""
    shots = np.frombuffer(packed, np.uint8).reshape(-1, -(-n_detectors // 8))
    parts = []
    with torch.no_grad():
        for start in range(0, len(shots), BATCH):
            events = unpack(shots[start : start + BATCH], n_detectors).astype(np.float32)
            parts.append(model(torch.from_numpy(events)).numpy().astype("<f4", copy=False))
    return np.concatenate(parts).tobytes()


def receive(stream: BinaryIO) -> tuple[bytes, bytes]:
    """The next frame; an empty tag where the judge has hung up."""
    header = stream.read(protocol.HEADER.size)
    if len(header) < protocol.HEADER.size:
        return b"", b""
    tag, length = protocol.HEADER.unpack(header)
    return tag, stream.read(length)


def send(stream: BinaryIO, tag: bytes, payload: bytes) -> None:
    stream.write(protocol.pack(tag, payload))
    stream.flush()


def encode_error(error: Exception) -> bytes:
    what = error.message if isinstance(error, AutoqecError) else f"{type(error).__name__}: {error}"
    location, hint = (error.location, error.hint) if isinstance(error, AutoqecError) else (None, None)
    kind = type(error).__name__
    return json.dumps({"error": kind, "what": what[:2_000], "where": location, "hint": hint}).encode()


if __name__ == "__main__":
    main()
