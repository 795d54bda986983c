"""The replay ratio, as counts under a fake clock, and the replay buffer."""

from __future__ import annotations

import heapq
import threading

import numpy as np
import pytest

from autoqec.errors import UsageError
from autoqec.extensions.training_loops.replay_buffer import (
    DoubleBuffer,
    ReplayBuffer,
    Throttle,
    check_buffer_size,
    require_gap_figure,
)
from autoqec.runner.samples import GAP, FieldSelection


def test_update_of_several_ranks_counts_a_batch_of_each() -> None:
    throttle = Throttle(1.0, 100, ranks=3)
    assert not throttle.allows_update(0, 299) and throttle.allows_update(0, 300)
    assert throttle.most(899) == 2 and throttle.achieved_ratio(2, 900) == pytest.approx(2 / 3)
    ahead = 2 + 3  # the double buffer of one sampler, and what the next update needs
    assert not throttle.sampler_must_wait(ahead + 3, 1, 1) and throttle.sampler_must_wait(ahead + 4, 1, 1)


class FakeClock:
    """A sampler with a batch every `draw` seconds and an optimizer with a step every `update` seconds."""

    def __init__(self, throttle: Throttle, draw: float, update: float, sampler_batch: int) -> None:
        self.throttle, self.sampler_batch = throttle, sampler_batch
        self.updates = self.drawn = 0
        self.seen: list[tuple[int, int]] = []
        self.events: list[tuple[float, str]] = [(draw, "batch")]
        self.every, self.takes, self.busy = draw, update, False

    def run(self, seconds: float) -> None:
        while self.events[0][0] <= seconds:
            now, what = heapq.heappop(self.events)
            if what == "batch":
                self.drawn += self.sampler_batch
                heapq.heappush(self.events, (now + self.every, "batch"))
            else:
                self.busy = False
            if not self.busy and self.throttle.allows_update(self.updates, self.drawn):
                self.updates, self.busy = self.updates + 1, True
                self.seen.append((self.updates, self.drawn))
                heapq.heappush(self.events, (now + self.takes, "done"))


@pytest.mark.parametrize("ratio", [1.0, 4.0, 0.25])
@pytest.mark.parametrize("sampler_batch", [16, 512])
def test_fast_optimizer_reaches_but_never_exceeds_the_ratio(ratio: float, sampler_batch: int) -> None:
    """With batches far larger than the sampler's, a throttle that counts iterations overshoots at first."""
    clock = FakeClock(Throttle(ratio, 512), draw=sampler_batch / 1000, update=1e-4, sampler_batch=sampler_batch)
    clock.run(60)
    achieved_ratio = [clock.throttle.achieved_ratio(updates, drawn) for updates, drawn in clock.seen]
    assert max(achieved_ratio) <= ratio, "never above, the first update included"
    assert clock.throttle.achieved_ratio(clock.updates, clock.drawn) == pytest.approx(ratio, rel=0.05)
    assert clock.updates == clock.throttle.most(clock.drawn)


@pytest.mark.parametrize("ratio", [1.0, 4.0, 0.25])
def test_slow_optimizer_runs_at_full_speed_below_the_ratio(ratio: float) -> None:
    clock = FakeClock(Throttle(ratio, 100), draw=0.1, update=0.2 / ratio, sampler_batch=100)
    clock.run(60)
    assert clock.updates == pytest.approx(60 * 5 * ratio, rel=0.05)
    assert clock.throttle.achieved_ratio(clock.updates, clock.drawn) == pytest.approx(ratio / 2, rel=0.05)


def test_ten_updates_per_second_at_a_thousand_samples_per_second() -> None:
    clock = FakeClock(Throttle(1.0, 100), draw=0.01, update=1e-4, sampler_batch=10)
    clock.run(30)
    assert clock.updates <= 300 and clock.updates >= 299


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(UsageError, match="replay ratio must be a number above 0"):
        Throttle(ratio, 8)
    with pytest.raises(UsageError, match="batch of 65 shots is larger than the replay buffer of 64"):
        check_buffer_size(65, 64)
    with pytest.raises(UsageError, match="near_failure: 0"):
        require_gap_figure(("Detections",))


@pytest.mark.parametrize(("ratio", "samplers"), [(1.0, 1), (0.25, 1), (4.0, 3), (0.1, 2)])
def test_throttled_samplers_and_optimizer_do_not_deadlock(ratio: float, samplers: int) -> None:
    throttle = Throttle(ratio, 8)
    batches = updates = 0
    furthest = 0.0
    while batches < 200:
        moved = False
        if not throttle.sampler_must_wait(batches, updates, samplers):
            batches, moved = batches + 1, True
        elif throttle.allows_update(updates, 8 * batches):
            updates, moved = updates + 1, True
        assert moved, "both wait"
        furthest = max(furthest, batches - updates / ratio)
    assert furthest <= 2 * samplers + 1 / ratio + 2


def rows(start: int, n: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    number = np.arange(start, start + n)
    bits = (number[:, None] >> np.arange(12) & 1).astype(np.uint8)
    return {"bits": bits, "left_out": bits, "number": number}, {GAP: number.astype(np.float32)}


KEEP = FieldSelection(("bits", "number"), bits=("bits",))


def buffer(size: int) -> ReplayBuffer:
    fields, figures = rows(0, 4)
    return ReplayBuffer(size, KEEP(fields), figures)


def test_buffer_holds_the_last_shots_and_restores_selected_fields() -> None:
    replay = buffer(10)
    for start in range(0, 28, 4):
        fields, figures = rows(start, 4)
        replay.append(KEEP(fields), figures)
    drawn = KEEP.restore(replay.draw(500, np.random.default_rng(0)), {"bits": 12})
    assert set(drawn) == {"bits", "number"} and replay.appended == 28
    assert set(drawn["number"]) == set(range(18, 28)), "the last ten, evenly"
    assert (drawn["bits"] == (drawn["number"][:, None] >> np.arange(12) & 1)).all(), "rows stay together"
    assert list(replay.figures(since=25, most=100)[GAP]) == [25, 26, 27]
    assert list(replay.figures(since=0, most=2)[GAP]) == [26, 27]


def test_replay_draws_the_requested_share_by_gap() -> None:
    replay = buffer(64)
    fields, figures = rows(0, 64)
    replay.append(KEEP(fields), figures)
    rng = np.random.default_rng(1)
    near_failure = {
        share: (replay.draw(4000, rng, near_failure=share)["number"] < 3).mean() for share in (0.0, 0.5, 1.0)
    }
    expected = (1 - np.exp(-3)) / (1 - np.exp(-64))
    assert near_failure[0.0] == pytest.approx(3 / 64, abs=0.02)
    assert near_failure[0.5] == pytest.approx((3 / 64 + expected) / 2, abs=0.03)
    assert near_failure[1.0] == pytest.approx(expected, abs=0.02)


def test_double_buffer_fills_while_copying_and_loses_no_batch() -> None:
    """With threads; test_async_rl uses processes."""
    fields, figures = rows(0, 4)
    double_buffer, replay = DoubleBuffer(4, fields, figures), buffer(400)
    for start in (0, 4):
        double_buffer.fill(*rows(start, 4))
    assert double_buffer.free.get(timeout=0.05) is None, "two batches, both halves are full and no copier runs"
    copier = threading.Thread(target=double_buffer.drain, args=(replay, KEEP))
    copier.start()
    for start in range(8, 400, 4):
        double_buffer.fill(*rows(start, 4))
    double_buffer.end()
    copier.join(10)
    assert not copier.is_alive() and replay.appended == 400
    assert sorted(replay.figures(0, 400)[GAP]) == list(range(400))


def test_waiting_for_a_dead_lock_holder_can_be_aborted() -> None:
    replay = buffer(10)
    calls: list[str] = []

    def abort() -> None:
        calls.append("waited")
        raise RuntimeError("the copier has died")

    with replay.lock:
        replay.lock.on_wait = abort
        with pytest.raises(RuntimeError, match="has died"):
            replay.draw(1, np.random.default_rng(0))
    assert calls == ["waited"]
