"""The hall of fame: bounded, deduplicated, ranked."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoqec.extensions.continual.environments.multi import HallOfFame
from tests.support.batch_envs import ToyEnv


def test_members_are_sorted_and_limited_by_the_size():
    hall = HallOfFame(2)
    assert [hall.add(ToyEnv(number), number) for number in (3.0, 1.0, 2.0, 5.0)] == [True, True, True, False]
    assert [env.state.number for env in hall] == [1.0, 2.0]
    assert hall[0].state.number == 1.0 and hall[-1].state.number == 2.0 and len(hall) == 2
    with pytest.raises(ValueError):
        HallOfFame(0)


def test_members_are_clones():
    hall, env = HallOfFame(1), ToyEnv(1.0)
    hall.add(env, 1.0)
    env.state.number = 99.0
    assert hall[0].state.number == 1.0


def test_better_of_two_equal_structures_is_kept():
    hall = HallOfFame(3)
    assert hall.add(ToyEnv(1.0), 5.0)
    assert not hall.add(ToyEnv(1.0), 6.0)
    assert not hall.add(ToyEnv(1.0), 5.0)
    assert hall.add(ToyEnv(1.0), 4.0)
    assert hall.losses == [4.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_non_finite_losses_are_refused(loss):
    hall = HallOfFame(2)
    hall.add(ToyEnv(1.0), 1.0)
    assert not hall.add(ToyEnv(2.0), loss)
    hall.add(ToyEnv(3.0), 0.5)
    assert hall.losses == [0.5, 1.0]


def test_samples_are_members_without_repeats():
    hall = HallOfFame(5)
    for number in range(5):
        hall.add(ToyEnv(number), number)
    sample = hall.sample(3, random.Random(1))
    assert len({env.signature for env in sample}) == 3
    assert len(hall.sample(9, random.Random(1))) == 5
    assert HallOfFame(2).sample(1, random.Random(1)) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(allow_nan=True)), max_size=30), st.integers(1, 4))
def test_it_keeps_the_best_loss_of_the_best_structures(added, capacity):
    """Only a design that was dropped and returns with a better loss breaks the order of history; losses never rise."""
    hall = HallOfFame(capacity)
    worst_best = math.inf
    for number, loss in added:
        hall.add(ToyEnv(number), loss)
        assert len(hall) <= capacity and list(hall.losses) == sorted(hall.losses)
        assert len({env.signature for env in hall}) == len(hall)
        if hall.losses:
            assert hall.losses[0] <= worst_best
            worst_best = hall.losses[0]
    finite = [loss for _, loss in added if math.isfinite(loss)]
    assert (hall.losses[0] if finite else None) == (min(finite) if finite else None)
