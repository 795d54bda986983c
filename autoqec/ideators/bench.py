"""Ideators on a table instead of a machine: rounds in milliseconds, scored by what a judge would have verified.

A simulated round: propose, snap to the table, val figures, nomination by the paired interval, a judgement on shots
that val never saw. Score: the hypervolume of the verified front over relative gain, FLOPs and parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import canonical_fork
from autoqec.contracts.verdict import PairedCounts, PairedEffect
from autoqec.ideators import space
from autoqec.ideators.bench_table import Mirror, Table, as_is
from autoqec.qec import stats

Propose = Callable[[dict[str, Any]], IdeatorResponse | None]
Point = tuple[float, float, float]

VAL_SHOTS = PROFILES["smoke"].val_shots  # of a round; dev's are as many
MIN_GAIN = 0.02  # lower bound of the relative gain, as the envs' protocol has it
RESAMPLES = 2_000


@dataclass(frozen=True)
class Rules:
    """How rounds are measured. told: whose figures are told for a cell (None: its own). mirror: what the agent's
    params stand for. noop: every decoder fails exactly where the plain backend does. min_gain: what the lower bound of
    the relative gain must reach for a round to be verified."""

    rounds: int = 20
    val_shots: int = VAL_SHOTS
    told: Sequence[int] | None = None
    mirror: Mirror = as_is
    noop: bool = False
    min_gain: float = MIN_GAIN


@dataclass
class Course:
    """One simulated run. After each round: hypervolume, seconds of training in all, dollars in all."""

    hypervolume: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    dollars: list[float] = field(default_factory=list)
    verified: int = 0


def simulate(
    propose: Propose, table: Table, *, seed: int, rules: Rules, spent: Callable[[], float] = lambda: 0.0
) -> Course:
    """One run of `propose`. A None or a config outside the space is a failed round. spent: dollars so far."""
    course, history, taken, front = Course(), list[dict[str, Any]](), set[int](), list[Point]()
    scale = Scale.of(table)
    for number in range(1, rules.rounds + 1):
        reply = propose(_view(table, history, seed))
        params = space.params_of(reply.proposal) if reply else None
        if reply is None or params is None:
            history.append(_row(number, reply, reply.proposal if reply else {}, status="compile_error"))
        else:
            index = table.nearest(rules.mirror(params), taken)
            taken.add(index)
            row, point = _round(table, index, number, reply, seed, rules, scale)
            history.append(row)
            front += [] if point is None else [point]
            course.verified += point is not None
        last = course.seconds[-1] if course.seconds else 0.0
        course.seconds.append(last + (table.cells[index].seconds if reply is not None and params is not None else 0.0))
        course.dollars.append(spent())
        course.hypervolume.append(hypervolume(front))
    return course


def _round(
    table: Table, index: int, number: int, reply: IdeatorResponse, seed: int, rules: Rules, scale: Scale
) -> tuple[dict[str, Any], Point | None]:
    """The row the agent is told, and the point the judge verified."""
    half = table.plain.size // 2
    slices = max(1, half // rules.val_shots)
    start = (seed % slices) * rules.val_shots
    val, fresh = slice(start, min(start + rules.val_shots, half)), slice(half, None)
    truth = None if rules.noop else _effect(table.counts(index, fresh))
    source = index if rules.told is None else rules.told[index]
    shown = table.cells[source]
    # The agent is told that it tried the cell; but a template by its own name, else it would be asked for for ever.
    named = any(reply.proposal == one.config for one in space.TEMPLATES)
    config = reply.proposal if named else space.build(rules.mirror(table.cells[index].params))
    seen = _effect(table.counts(source, val))
    if seen is None:
        return _row(number, reply, config, status=shown.status, status_reason=shown.reason), None
    delta = 0.0 if rules.noop else seen.delta
    told: dict[str, Any] = {"delta_ler": delta, "n_params": shown.n_params, "flops_per_syndrome": shown.flops}
    nominated = not rules.noop and seen.delta_low > 0
    verified = nominated and _verified(truth, rules.min_gain)
    if nominated:
        published = _effect(table.counts(source, fresh))
        told |= {"verify_verdict": "VERIFIED" if _verified(published, rules.min_gain) else "SUSPICIOUS",
                 "delta_vs_baseline_holdout": published.delta if published else None}  # fmt: skip
    cell = table.cells[index]
    if not verified or truth is None or truth.relative is None or cell.flops is None or cell.n_params is None:
        return _row(number, reply, config, **told), None
    return _row(number, reply, config, **told), scale.point(truth.relative, cell.flops, cell.n_params)


def _effect(counts: PairedCounts | None) -> PairedEffect | None:
    return None if counts is None else stats.paired(counts)


def _verified(effect: PairedEffect | None, min_gain: float) -> bool:
    return effect is not None and effect.delta_low > 0 and (effect.relative_low or 0.0) >= min_gain


def _view(table: Table, history: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """As `RunMemory.l2_for_ideator` would give it."""
    return {
        "run_id": "bench",
        "seed": seed,
        "env": {"code": {"kind": "table", "name": table.env}},
        "profile": {},
        "baseline_config": space.TEMPLATES[0].config,
        "history": list(history),
        "pending": [],
        "pareto": [],
        "pareto_preview": [],
    }


def _row(number: int, reply: IdeatorResponse | None, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    fork = reply.fork_from if reply else "baseline"
    row: dict[str, Any] = {
        "round": number,
        "status": "ok",
        "status_reason": None,
        "hypothesis": reply.hypothesis if reply else "",
        "fork_from": fork,
        "fork_from_canonical": canonical_fork(fork),
        "compose_mode": reply.compose_mode if reply else None,
        "branch": f"exp/bench/{number:02d}-x",
        "dsl_config": parse_dsl(config).config() if config else None,
        "delta_ler": None,
        "flops_per_syndrome": None,
        "n_params": None,
        "verify_verdict": None,
        "delta_vs_baseline_holdout": None,
    } | more
    return row | {"forkable": row["status"] == "ok"}


@dataclass(frozen=True)
class Scale:
    """The table's own extremes: what 0 and 1 stand for on each axis."""

    gain: float
    flops: tuple[int, int]
    n_params: tuple[int, int]

    @classmethod
    def of(cls, table: Table) -> Scale:
        fresh, measured = slice(table.plain.size // 2, None), [cell for cell in table.cells if cell.differs is not None]
        counted = [table.counts(index, fresh) for index in range(len(table.cells))]
        gains = [1 - one.errors_candidate / one.errors_reference for one in counted if one and one.errors_reference]
        flops = [cell.flops for cell in measured if cell.flops is not None]
        sizes = [cell.n_params for cell in measured if cell.n_params is not None]
        return cls(
            max([*gains, 1e-9]),
            (min(flops, default=1), max(flops, default=1)),
            (min(sizes, default=1), max(sizes, default=1)),
        )

    def point(self, relative: float, flops: int, n_params: int) -> Point:
        """Each coordinate in [0, 1], larger is better; costs on a log scale."""
        return (min(max(relative / self.gain, 0.0), 1.0), _cheap(flops, self.flops), _cheap(n_params, self.n_params))


def _cheap(value: int, ends: tuple[int, int]) -> float:
    low, high = max(ends[0], 1), max(ends[1], 1)
    # The dearest cell keeps a tenth, so that a gain without thrift still counts.
    share = 0.0 if low == high else math.log(max(value, 1) / low) / math.log(high / low)
    return 1.0 - 0.9 * min(max(share, 0.0), 1.0)


def hypervolume(points: Sequence[Point]) -> float:
    """Volume of [0, 1]^3 that the points dominate, against the origin."""
    volume, below, done = 0.0, 0.0, sorted(points, key=lambda point: point[2])
    for index, point in enumerate(done):
        if point[2] > below:
            volume += (point[2] - below) * _area([(one[0], one[1]) for one in done[index:]])
            below = point[2]
    return volume


def _area(points: Sequence[tuple[float, float]]) -> float:
    area, top = 0.0, 0.0
    for x, y in sorted(points, reverse=True):
        if y > top:
            area += x * (y - top)
            top = y
    return area


def verifiable(table: Table, min_gain: float = MIN_GAIN) -> list[tuple[int, Point]]:
    """Every cell that the judge would verify, with its point."""
    scale, fresh, found = Scale.of(table), slice(table.plain.size // 2, None), []
    for index, cell in enumerate(table.cells):
        effect = _effect(table.counts(index, fresh))
        if effect and _verified(effect, min_gain) and effect.relative is not None and cell.flops and cell.n_params:
            found.append((index, scale.point(effect.relative, cell.flops, cell.n_params)))
    return found


def best_possible(table: Table, min_gain: float = MIN_GAIN) -> float:
    """The hypervolume of every cell that the judge would verify: what 100% stands for."""
    return hypervolume([point for _, point in verifiable(table, min_gain)])


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences with its 95% bootstrap interval over seeds, resampled with a fixed seed."""
    gaps = np.asarray(one, float) - np.asarray(other, float)
    rng = np.random.default_rng(0)
    means = gaps[rng.integers(0, gaps.size, (RESAMPLES, gaps.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(gaps.mean()), float(low), float(high)
