"""The candidate process (`python -m autoqec.verification.candidate.process`): detection events in, log-odds out.

It runs inside the sandbox with a copy of the artifact. It has no labels, seeds, secret or run directory. Requests
arrive on stdin. Answers leave on a separate descriptor, because stdout is redirected to stderr before any branch code
is imported, so that prints of branch code cannot corrupt an answer.
"""

from __future__ import annotations

import ctypes
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
from autoqec.decoders.local_forward import LocalForward
from autoqec.errors import AutoqecError, ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack
from autoqec.store.files import parse_env
from autoqec.verification.candidate import decoder_libraries, protocol


def main() -> None:
    """Serve one verifier until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    torch.set_num_threads(1)
    try:
        spec = json.loads(_expect(requests, protocol.SPEC))
        if spec["modules_dir"] or not spec["whole_decoder"]:
            decoder_libraries.block()
        env = parse_env(spec["env_text"], location="env")
        if spec["member"] is None:
            problem = Problem.from_env(env)
        else:
            index, p = spec["member"]
            problem = Problem.from_env(env.other_members[index], p)
        free_unused_memory()
        send(answers, protocol.READY, b"")  # CPU time and memory are counted for the branch's code from here on
        _expect(requests, protocol.GO)
        model, model_info = build_model(spec, problem)
    except Exception as error:
        send(answers, protocol.ERROR, encode_error(error))
        return
    local = LocalForward.of(model, problem.n_detectors)
    send(answers, protocol.MODEL_INFO, json.dumps(model_info).encode())
    while True:
        tag, payload = receive(requests)
        if tag not in (protocol.DATA, protocol.TIME):
            return
        try:
            if tag == protocol.TIME:
                send(answers, protocol.TIMES, decode_one_by_one(model, problem, payload))
                continue
            send(answers, protocol.LOG_ODDS, infer_log_odds(model, local, payload, problem.n_detectors))
            if len(payload) > -(-problem.n_detectors // 8):  # single shots leave little, and their latency is measured
                free_unused_memory()
        except Exception as error:  # an exception of branch code costs this chunk, not the verification
            send(answers, protocol.ERROR, encode_error(error))


def _expect(requests: BinaryIO, expected_tag: bytes) -> bytes:
    tag, payload = receive(requests)
    if tag != expected_tag:
        raise ContractError(f"expected a {expected_tag.decode()} message, received {tag!r}")
    return payload


def build_model(spec: dict[str, Any], problem: Problem) -> tuple[Predecoder, dict[str, Any]]:
    """Import the editable modules, load the checkpoint and count its cost.

    Returns:
        The predecoder, and the payload of the MADE message.

    Raises:
        ContractError: Checkpoint and config, or checkpoint and env, do not belong together.
    """
    overlay.use_modules_dir(spec["modules_dir"])
    if spec["member"] is None:
        model, dsl = checkpoint.load(Path(spec["checkpoint"]), problem)
    else:
        model, dsl = checkpoint.load_for_member(Path(spec["checkpoint"]), problem)
    round_dsl = parse_dsl(spec["dsl_config"])
    if dsl.sha256() != round_dsl.sha256():
        raise ContractError(
            f"checkpoint holds config {dsl.sha256()[:12]}, the round's config is {round_dsl.sha256()[:12]}",
            location="checkpoint.pt",
            hint="verify the round with its own config.yaml",
        )
    cost = flops.count(model, problem.n_detectors)
    return model, {
        "circuit_sha256": problem.circuit_sha256,
        "dsl_sha256": dsl.sha256(),
        "n_params": cost.n_params,
        "flops_per_syndrome": cost.flops_per_syndrome,
    }


def infer_log_odds(model: Predecoder, local: LocalForward | None, packed: bytes, n_detectors: int) -> bytes:
    """Return the log-odds of every shot, float32 [n, n_edges], as bytes; by `local`, if there is one."""
    shots = np.frombuffer(packed, np.uint8).reshape(-1, -(-n_detectors // 8))
    if local is not None:
        return local(shots).astype("<f4", copy=False).tobytes()
    parts = []
    with torch.no_grad():
        for start in range(0, len(shots), protocol.BATCH):
            events = unpack(shots[start : start + protocol.BATCH], n_detectors).astype(np.float32)
            parts.append(model(torch.from_numpy(events)).numpy().astype("<f4", copy=False))
    return np.concatenate(parts).tobytes()


def decode_one_by_one(model: Predecoder, problem: Problem, packed: bytes) -> bytes:
    """Decode shots one by one as `autoqec decode` does; return the payload of the TIMS message."""
    # Both import decoder libraries, which are blocked in a process with branch code.
    from autoqec.decoders import latency
    from autoqec.decoders.decoding import CheckpointDecoder

    shots = np.frombuffer(packed, np.uint8).reshape(-1, -(-problem.n_detectors // 8))
    decoder = CheckpointDecoder.of_model(model, problem)
    predictions, elapsed_us = latency.decode_one_by_one(decoder.decode, shots, protocol.LATENCY_LIMIT_S)
    return elapsed_us.astype("<f8").tobytes() + predictions.astype(np.uint8).tobytes()


def free_unused_memory() -> None:
    """Give memory that the allocator keeps after a forward pass back to the kernel; C libraries without this keep it.

    What is left between two requests is in use, so that the verifier can bound it whatever the passes needed.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def receive(stream: BinaryIO) -> tuple[bytes, bytes]:
    """Read the next message; the tag is empty if the verifier has closed the pipe."""
    header = stream.read(protocol.HEADER.size)
    if len(header) < protocol.HEADER.size:
        return b"", b""
    tag, length = protocol.HEADER.unpack(header)
    return tag, stream.read(length)


def send(stream: BinaryIO, tag: bytes, payload: bytes) -> None:
    """Write one message."""
    stream.write(protocol.pack(tag, payload))
    stream.flush()


def encode_error(error: Exception) -> bytes:
    """Return the payload of a FAIL message."""
    message = error.message if isinstance(error, AutoqecError) else f"{type(error).__name__}: {error}"
    location, hint = (error.location, error.hint) if isinstance(error, AutoqecError) else (None, None)
    kind = type(error).__name__
    return json.dumps({"error": kind, "what": message[:2_000], "where": location, "hint": hint}).encode()


if __name__ == "__main__":
    main()
