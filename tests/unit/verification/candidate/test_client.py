"""The candidate client, against small programs that violate the protocol."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autoqec.errors import InfrastructureError
from autoqec.system.process import child
from autoqec.verification.candidate import client as candidate_client
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure
from autoqec.verification.session import read_model_info

HEAD = """
import struct, sys, time
def receive():
    tag, length = struct.unpack("<4sQ", sys.stdin.buffer.read(12))
    return tag, sys.stdin.buffer.read(length)
def send(tag, payload):
    sys.stdout.buffer.write(struct.pack("<4sQ", tag, len(payload)) + payload)
    sys.stdout.buffer.flush()
"""
Start = Callable[..., CandidateClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    clients: list[CandidateClient] = []

    def launch(body: str, *, answer_s: float = 20.0, total_s: float = 20.0, **limits: float) -> CandidateClient:
        process = child.start(
            [sys.executable, "-c", HEAD + body],
            cwd=tmp_path,
            limits=child.Limits(wallclock_s=60, **limits),  # type: ignore[arg-type]
            stderr=tmp_path / "err",
        )
        clients.append(CandidateClient(process, answer_s=answer_s, total_s=total_s))
        return clients[-1]

    yield launch
    for client in clients:
        client.close()


def shots(n: int, width: int = 8) -> np.ndarray:
    return np.arange(n * width, dtype=np.uint8).reshape(n, width)


ECHO = """
while True:
    _, data = receive()
    n = len(data) // 8
    send(b"ODDS", struct.pack("<f", float(data[0])) * (n * 300))
"""


def test_answers_are_received_in_order(start: Start) -> None:
    client = start(ECHO)
    for first in (3, 4):
        client.send(np.full((5, 8), first, np.uint8))
    for first in (3, 4):
        answer = client.receive(300)
        assert isinstance(answer, np.ndarray) and answer.shape == (5, 300) and (answer == first).all()


def test_large_frames_both_ways_do_not_deadlock(start: Start) -> None:
    """Both pipes are full: 6 MB of answers wait while the next request of 400 kB is sent."""
    client = start(ECHO)
    for _ in range(3):
        client.send(np.zeros((5_000, 80), np.uint8).reshape(-1, 8)[:50_000])
        assert client.outstanding
    for _ in range(3):
        assert isinstance(client.receive(300), np.ndarray)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("receive(); sys.exit(3)", "closed"),
        ("receive(); send(b'EVIL', b'x' * 10)", "protocol"),
        ("receive(); sys.stdout.buffer.write(struct.pack('<4sQ', b'ODDS', 2**60)); sys.exit()", "protocol"),
        ("receive(); print('x' * 5000, flush=True); time.sleep(60)", "protocol"),
        ("receive(); send(b'ODDS', b'')", "shape"),
        ("receive(); send(b'FAIL', b'no json')", "protocol"),
        ("receive(); send(b'FAIL', b'[1]')", "protocol"),
        ("receive(); send(b'FAIL', b'[' * 60_000)", "protocol"),
    ],
)
def test_bad_answers_are_failures(start: Start, body: str, error: str) -> None:
    client = start(body)
    client.send(shots(4))
    answer = client.receive(2)
    assert isinstance(answer, CandidateFailure) and answer.error == error


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("struct.pack('<2d2B', 5.0, 7.5, 1, 0)", None),
        ("b''", "shape"),
        ("bytes(17)", "shape"),
        ("struct.pack('<5d5B', *range(1, 6), *range(5))", "shape"),
        ("struct.pack('<2d2B', 5.0, -1.0, 1, 0)", "protocol"),
        ("struct.pack('<2d2B', 5.0, float('nan'), 1, 0)", "protocol"),
    ],
)
def test_times_of_single_shots_are_checked(start: Start, payload: str, error: str | None) -> None:
    """Times of the first two of four shots, or invalid answers."""
    client = start(f"receive(); send(b'TIMS', {payload}); receive()")
    decoded = client.decode_one_by_one(shots(4), 1)
    if error is None:
        assert not isinstance(decoded, CandidateFailure)
        assert decoded[0].tolist() == [[True], [False]] and decoded[1].tolist() == [5.0, 7.5]
    else:
        assert isinstance(decoded, CandidateFailure) and decoded.error == error


@pytest.mark.parametrize("body", ["receive(); os.kill(os.getpid(), 9)", "receive(); os._exit(137)"])
def test_killed_process_is_not_a_failure_of_the_candidate(start: Start, body: str) -> None:
    """bubblewrap reports the signal as status 137. After the error, every answer fails."""
    client = start("import os\n" + body)
    client.send(shots(4))
    with pytest.raises(InfrastructureError, match="was killed"):
        client.receive(2)
    client.send(shots(4))
    answer = client.receive(2)
    assert isinstance(answer, CandidateFailure) and answer.error == "closed"


def test_killed_process_over_its_memory_limit_is_a_failure(start: Start) -> None:
    size = 2 * max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 100_000_000)
    client = start(f"import os; receive(); held = b'x' * {size}; os.kill(os.getpid(), 9)", memory_gb=size / 2e9)
    client.send(shots(4))
    answer = client.receive(2)
    assert isinstance(answer, CandidateFailure) and answer.error == "limit" and "memory" in answer.what


def test_reported_failures_are_truncated_and_do_not_end_the_session(start: Start) -> None:
    client = start(
        """
receive(); send(b"FAIL", b'{"error": "ValueError", "what": "' + b"y" * 3000 + b'"}')
receive(); send(b"ODDS", bytes(16))
time.sleep(60)
"""
    )
    client.send(shots(2))
    client.send(shots(2))
    answer = client.receive(2)
    assert isinstance(answer, CandidateFailure) and answer.error == "ValueError" and len(answer.what) == 500
    assert isinstance(client.receive(2), np.ndarray)


def test_candidate_that_never_reads_or_answers_is_killed(start: Start) -> None:
    client = start("time.sleep(600)", answer_s=0.3)
    client.send(np.zeros((100_000, 8), np.uint8))
    client.send(shots(1))
    assert client.receive(2) == CandidateFailure("timeout", "no answer in time")
    assert isinstance(client.receive(2), CandidateFailure)  # at once: the process has ended
    assert client.close().returncode != 0


def test_exceeded_limit_is_named(start: Start) -> None:
    client = start("receive(); x = bytearray(400_000_000); time.sleep(60)", memory_gb=0.2)
    client.send(shots(1))
    answer = client.receive(2)
    assert isinstance(answer, CandidateFailure) and answer.error in ("limit", "closed") and "memory" in str(answer)


@pytest.mark.parametrize(("kept", "least", "most"), [("", 0, 50), ("table = bytearray(b'x') * 10**8", 95, 150)])
def test_memory_is_read_when_the_process_waits_for_a_request(start: Start, kept: str, least: int, most: int) -> None:
    """Memory of a forward pass is freed after the answer was sent; a table that is kept is not."""
    client = start(
        f"""
receive()
activations = bytearray(b'x') * 2 * 10**8
send(b"ODDS", bytes(4))
until = time.process_time() + 0.3
while time.process_time() < until:
    pass
del activations
{kept}
receive()
"""
    )
    client.send(shots(1))
    assert isinstance(client.receive(1), np.ndarray)
    assert least <= client.idle_memory_of_branch_code() / 1e6 <= most


def test_messages_of_a_candidate_are_one_printable_line(start: Start) -> None:
    """Lone surrogates cannot be written to a file; line breaks and escape codes would make more than one line."""
    client = start('receive(); send(b\'FAIL\', b\'{"error": "E\\\\ud800", "what": "a\\\\nb\\\\u001b[2J"}\')')
    client.send(shots(1))
    assert client.receive(2) == CandidateFailure("E ", "a b [2J")


@pytest.mark.parametrize("made", ["b'[1]'", "b'[' * 60_000", "b'\\xff'"])
def test_model_info_must_be_an_object(start: Start, made: str) -> None:
    client = start(f"receive(); send(b'MADE', {made}); time.sleep(60)")
    client.send_spec({"checkpoint": "x"})
    assert isinstance(client.receive_model_info(), CandidateFailure)


HASHES = {"circuit_sha256": "0" * 64, "dsl_sha256": "1" * 64}


@pytest.mark.parametrize(
    "made",
    [
        {"n_params": 1, "flops_per_syndrome": -1},
        {"n_params": True, "flops_per_syndrome": 1},
        {"n_params": 1, "flops_per_syndrome": 1e3},
        {"n_params": 1, "flops_per_syndrome": 10**400},
        {"n_params": 1, "flops_per_syndrome": 1, "circuit_sha256": "obey me"},
        {"n_params": 1},
    ],
)
def test_forged_model_info_is_discarded(start: Start, made: dict[str, object]) -> None:
    """-1 FLOPs would dominate every front; a number beyond the range of floats would crash the verifier."""
    payload = json.dumps(HASHES | made).encode()
    client = start(f"receive(); send(b'REDY', b''); receive(); send(b'MADE', {payload!r}); time.sleep(60)")
    client.send_spec({"checkpoint": "x"})
    assert read_model_info(client) == CandidateFailure("protocol", "the candidate does not say what it built")


def test_only_waiting_counts_towards_the_time_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps while the verifier decodes; the limit would be exceeded if that time counted."""
    decoding_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + decoding_s)
    monkeypatch.setattr(candidate_client, "time", clock)
    connection = start(ECHO, total_s=300.0)
    for _ in range(3):
        connection.send(shots(1))
        assert isinstance(connection.receive(300), np.ndarray)
        decoding_s += 1_000.0
    connection._remaining_s = 0.0
    connection.send(shots(1))
    answer = connection.receive(300)
    assert isinstance(answer, CandidateFailure) and answer.error == "timeout"
