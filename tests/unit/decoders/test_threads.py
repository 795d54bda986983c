"""Decoding with several threads: answers of one thread in the same order, a decoder per thread, errors in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from autoqec.decoders import threads
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.threads import PART, PARTS_AHEAD, check_threads, decode_array, decode_parts, decoders_needed
from autoqec.errors import UsageError
from autoqec.models import model_env, model_path
from autoqec.qec.sampling import sample
from tests.support.envs import problem


@pytest.mark.parametrize("name", ["surface_d3_z", pytest.param("surface_d5_z", marks=pytest.mark.long)])
def test_two_threads_answer_like_one_on_100_000_shots(name: str) -> None:
    decoders = [CheckpointDecoder.of(model_env(name), model_path(name)) for _ in range(3)]
    events = sample(decoders[0].problem, 100_000, 11).detection_events
    expected = decoders[0].decode(events)
    assert np.array_equal(decode_array(decoders[1:], events), expected) and expected.any()
    gates = [decoder.decoder.gate for decoder in decoders[1:]]
    assert all(gate is not None and 0 < gate.shots < len(events) for gate in gates), "both threads decoded shots"


def test_each_part_has_a_decoder_and_no_thread_idles() -> None:
    """A few shots among 16 threads need one decoder; an unknown number of shots may need all."""
    counts = {None: 16, 0: 1, 1: 1, PART: 1, PART + 1: 2, 15 * PART: 15, 100 * PART: 16}
    assert {n: decoders_needed(16, n) for n in counts} == counts


def numbered(parts: int) -> Iterator[np.ndarray]:
    for number in range(parts):
        yield np.full((3, 1), number, np.uint8)


class Recorder:
    """Returns the detection events, and fails if two threads use it at once or a part holds `bad`."""

    def __init__(self, barrier: threading.Barrier | None = None, bad: int | None = None) -> None:
        self.lock, self.barrier, self.bad = threading.Lock(), barrier, bad

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        assert self.lock.acquire(blocking=False), "a decoder is used by two threads"
        try:
            if self.barrier is not None and not self.barrier.broken:
                self.barrier.wait(30)  # two decoders are inside at once
            if detection_events[0, 0] == self.bad:
                raise UsageError(f"part {self.bad} is bad")
            return detection_events
        finally:
            self.lock.release()


def test_parts_keep_their_order_and_decoders_run_side_by_side() -> None:
    barrier = threading.Barrier(2)
    found = [int(part[0, 0]) for part in decode_parts([Recorder(barrier), Recorder(barrier)], numbered(40))]
    assert found == list(range(40))


def test_error_is_raised_at_its_place_and_ends_the_threads() -> None:
    parts = decode_parts([Recorder(bad=5), Recorder(bad=5)], numbered(40))
    seen = []
    with pytest.raises(UsageError, match="part 5 is bad"):
        for part in parts:
            seen.append(int(part[0, 0]))
    assert seen == list(range(5))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_few_parts_are_read_ahead() -> None:
    parts = numbered(40)
    decoded = decode_parts([Recorder(), Recorder()], parts)
    next(decoded)
    assert next(parts)[0, 0] == 2 * PARTS_AHEAD + 1
    decoded.close()


@pytest.mark.parametrize("count", [0, 1, PART + 5])
def test_arrays_of_any_length(count: int) -> None:
    events = sample(problem(3), count, 1).detection_events if count else np.zeros((0, 3), np.uint8)
    decoders = [CheckpointDecoder.of(model_env("surface_d3_z"), model_path("surface_d3_z")) for _ in range(2)]
    assert np.array_equal(decode_array(decoders, events), decoders[0].decode(events))


def test_more_threads_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cpu_count", lambda: 4)
    check_threads(4, "--threads")
    for count in (0, 5):
        with pytest.raises(UsageError, match=rf"{count} threads on 4 cores") as caught:
            check_threads(count, "--threads")
        assert caught.value.location == "--threads" and "1 to 4" in (caught.value.hint or "")
