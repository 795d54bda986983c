"""Dominance and the front, against their definitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoqec.contracts.pareto import (
    PREVIEW_SIZE,
    ParetoEntry,
    dominates,
    non_dominated,
    non_dominated_points,
    objectives,
    preview,
)

coordinate = st.integers(-3, 3).map(float)
points = st.tuples(coordinate, coordinate, coordinate)


def entry(index: int, delta: float, flops: int, params: int) -> ParetoEntry:
    return ParetoEntry(
        round_attempt_id=f"attempt-{index}",
        commit_sha="0" * 40,
        branch=f"exp/20260101-000000/{index:02d}-x",
        delta_vs_baseline_holdout=delta,
        paired_eval_bundle_id="bundle",
        flops_per_syndrome=flops,
        n_params=params,
        verdict="VERIFIED",
        fork_from="baseline",
        fork_from_canonical="baseline",
        compose_mode=None,
    )


pools = st.lists(st.tuples(coordinate, st.integers(1, 4), st.integers(1, 4)), max_size=12).map(
    lambda triples: [entry(index, *triple) for index, triple in enumerate(triples)]
)


@given(points, points, points)
def test_dominance_is_a_strict_order(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> None:
    assert not dominates(a, a)
    assert not (dominates(a, b) and dominates(b, a))
    assert dominates(a, c) or not (dominates(a, b) and dominates(b, c))


@given(pools)
def test_front_is_the_set_of_non_dominated_entries(pool: list[ParetoEntry]) -> None:
    front = non_dominated(pool)
    for point in pool:
        beaten = any(dominates(objectives(other), objectives(point)) for other in pool)
        assert (point in front) == (not beaten)


@given(pools, st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter(pool: list[ParetoEntry], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(pool)
    random.shuffle(shuffled)
    assert non_dominated(shuffled) == non_dominated(pool)


@given(pools)
def test_front_is_sorted_by_gain_and_stable(pool: list[ParetoEntry]) -> None:
    front = non_dominated(pool)
    deltas = [entry.delta_vs_baseline_holdout for entry in front]
    assert deltas == sorted(deltas, reverse=True)
    assert non_dominated(front) == front
    assert preview(front) == front[:PREVIEW_SIZE]


@given(st.lists(st.tuples(*[st.integers(0, 4).map(float)] * 3), max_size=25))
def test_fast_filter_equals_the_definition(points: list[tuple[float, ...]]) -> None:
    flags = non_dominated_points(points)
    assert flags == [not any(dominates(other, mine) for other in points) for mine in points]
