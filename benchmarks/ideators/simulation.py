"""Simulates runs of an ideator on a table of measured configs, in milliseconds per round.

A simulated round: propose, take the nearest config of the table, report validation figures, nominate by the paired
interval, verify on other shots. The score of a run is the hypervolume of its verified front over relative gain, FLOPs
and parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.round import PairedCounts, canonical_fork
from autoqec.contracts.verdict import PairedEffect
from autoqec.contracts.views import IdeatorView
from autoqec.ideators import space
from autoqec.qec import stats
from benchmarks.ideators.table import ParamsTransform, Table, identity

ProposeFn = Callable[[IdeatorView], IdeatorResponse | None]
ParetoPoint = tuple[float, float, float]

VAL_SHOTS = profile_of("smoke").val_shots  # the same number as in the profile dev
MIN_GAIN = 0.02  # for the lower bound of the relative gain, as in the protocol of the envs
BOOTSTRAP_RESAMPLES = 2_000


@dataclass(frozen=True)
class SimulationSettings:
    """How a run is simulated.

    Attributes:
        rounds: Number of rounds.
        val_shots: Validation shots of a round.
        reported: Index of the entry whose figures are reported for each entry; None: its own.
        params_transform: Maps params that the ideator names to params of the table.
        noop: Every decoder fails exactly where the baseline decoder does.
        min_gain: What the lower bound of the relative gain must reach for a round to be verified.
        slots: Rounds measured at once, recorded in the order in which they started, as in `orchestrator.loop`: a
            proposal sees the results of all but the `slots - 1` rounds before it, and those as pending.
    """

    rounds: int = 20
    val_shots: int = VAL_SHOTS
    reported: Sequence[int] | None = None
    params_transform: ParamsTransform = identity
    noop: bool = False
    min_gain: float = MIN_GAIN
    slots: int = 1


FALLBACK = "fallback"  # source of a proposal that replaces one that a model did not make


@dataclass
class SimulatedRun:
    """One simulated run: hypervolume, total seconds of training, seconds since the start, total dollars after a round.

    The seconds since the start are those at which the round is recorded; with one slot they are the training time.

    Attributes:
        built: Rounds whose proposal came from the strategy itself and built a network.
    """

    hypervolume: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    dollars: list[float] = field(default_factory=list)
    verified: int = 0
    built: int = 0

    def hypervolume_at(self, seconds: float) -> float:
        """Return the hypervolume of the rounds recorded within this time since the start."""
        return [0.0, *(v for v, at in zip(self.hypervolume, self.elapsed, strict=True) if at <= seconds)][-1]


def simulate(
    propose: ProposeFn,
    table: Table,
    *,
    seed: int,
    settings: SimulationSettings,
    spent_usd: Callable[[], float] = lambda: 0.0,
) -> SimulatedRun:
    """Simulate one run.

    Args:
        propose: Ideator; None or a config outside the space is a failed round.
        table: Measured configs.
        seed: Seed of the run, which also selects its validation shots.
        settings: How the run is simulated.
        spent_usd: Returns the dollars spent so far.
    """
    run, history, used_entries, pareto_points = SimulatedRun(), list[dict[str, Any]](), set[int](), list[ParetoPoint]()
    scale = ObjectiveScale.of(table)
    for number in range(1, settings.rounds + 1):
        response = propose(_view(history, seed, settings.slots))
        params = space.params_of(response.proposal) if response else None
        if response is None or params is None:
            history.append(_row(number, response, response.proposal if response else {}, status="compile_error"))
        else:
            index = table.nearest(settings.params_transform(params), used_entries)
            used_entries.add(index)
            row, point = _round(table, index, number, response, seed, settings, scale)
            history.append(row)
            pareto_points += [] if point is None else [point]
            run.verified += point is not None
        own = response is not None and not response.source.startswith(FALLBACK)
        run.built += own and history[-1]["status"] != "compile_error"
        took = table.entries[index].seconds if response is not None and params is not None else 0.0
        _add_times(run, took, settings.slots)
        run.dollars.append(spent_usd())
        run.hypervolume.append(hypervolume(pareto_points))
    return run


def _add_times(run: SimulatedRun, took: float, slots: int) -> None:
    """Append the times of a round: it starts when a slot is free, and is recorded after all earlier ones."""
    started = run.elapsed[-slots] if len(run.elapsed) >= slots else 0.0
    run.elapsed.append(max(started + took, *run.elapsed[-1:], 0.0))
    run.seconds.append(took + (run.seconds[-1] if run.seconds else 0.0))


def _round(
    table: Table,
    index: int,
    number: int,
    response: IdeatorResponse,
    seed: int,
    settings: SimulationSettings,
    scale: ObjectiveScale,
) -> tuple[dict[str, Any], ParetoPoint | None]:
    """Return the row that the ideator sees, and the point of the front if the round is verified."""
    half = table.baseline.size // 2
    slices = max(1, half // settings.val_shots)
    start = (seed % slices) * settings.val_shots
    val, test_shots = slice(start, min(start + settings.val_shots, half)), slice(half, None)
    test_effect = None if settings.noop else _effect(table.counts(index, test_shots))
    source = index if settings.reported is None else settings.reported[index]
    reported_entry = table.entries[source]
    # The history shows the entry that was measured, but a template as it was proposed: it would be proposed forever.
    is_template = any(
        response.proposal == space.without(template.config, space.OPTIONAL_KEYS) for template in space.TEMPLATES
    )
    config = response.proposal if is_template else space.build(settings.params_transform(table.entries[index].params))
    val_effect = _effect(table.counts(source, val))
    if val_effect is None:
        return _row(number, response, config, status=reported_entry.status, status_reason=reported_entry.reason), None
    delta = 0.0 if settings.noop else val_effect.delta
    reported: dict[str, Any] = {
        "delta_ler": delta,
        "n_params": reported_entry.n_params,
        "flops_per_syndrome": reported_entry.flops,
    }
    is_nominated = not settings.noop and val_effect.delta_low > 0
    verified = is_nominated and _verified(test_effect, settings.min_gain)
    if is_nominated:
        reported_effect = _effect(table.counts(source, test_shots))
        reported |= {"verify_verdict": "VERIFIED" if _verified(reported_effect, settings.min_gain) else "INCONCLUSIVE",
                 "delta_vs_baseline_holdout": reported_effect.delta if reported_effect else None}  # fmt: skip
    entry = table.entries[index]
    if (
        not verified
        or test_effect is None
        or test_effect.relative is None
        or entry.flops is None
        or entry.n_params is None
    ):
        return _row(number, response, config, **reported), None
    return _row(number, response, config, **reported), scale.point(test_effect.relative, entry.flops, entry.n_params)


def _effect(counts: PairedCounts | None) -> PairedEffect | None:
    return None if counts is None else stats.paired_effect(counts)


def _verified(effect: PairedEffect | None, min_gain: float) -> bool:
    return effect is not None and effect.delta_low > 0 and (effect.relative_low or 0.0) >= min_gain


def _view(rows: list[dict[str, Any]], seed: int, slots: int) -> IdeatorView:
    """Return the view that `RunMemory.l2_for_ideator` would give; the last `slots - 1` rounds are pending."""
    n_recorded = max(0, len(rows) - slots + 1)
    return IdeatorView(
        run_id="bench",
        seed=seed,
        env=None,
        profile=None,
        baseline_config=space.without(space.TEMPLATES[0].config, space.OPTIONAL_KEYS),
        history=tuple(rows[:n_recorded]),
        pending=tuple(row | _UNKNOWN for row in rows[n_recorded:]),
    )


_UNKNOWN: dict[str, Any] = {
    "status": None,
    "status_reason": None,
    "delta_ler": None,
    "flops_per_syndrome": None,
    "n_params": None,
    "verify_verdict": None,
    "delta_vs_baseline_holdout": None,
    "forkable": False,
}  # of a pending round


def _row(number: int, response: IdeatorResponse | None, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    fork = response.fork_from if response else "baseline"
    row: dict[str, Any] = {
        "round": number,
        "status": "ok",
        "status_reason": None,
        "hypothesis": response.hypothesis if response else "",
        "fork_from": fork,
        "fork_from_canonical": canonical_fork(fork),
        "compose_mode": response.compose_mode if response else None,
        "branch": f"exp/bench/{number:02d}-x",
        "dsl_config": parse_dsl(config).config() if config else None,
    }
    row = _UNKNOWN | row | more
    return row | {"forkable": row["status"] == "ok"}


@dataclass(frozen=True)
class ObjectiveScale:
    """The extremes of a table, which are 0 and 1 on each axis of the hypervolume."""

    gain: float
    flops: tuple[int, int]
    n_params: tuple[int, int]

    @classmethod
    def of(cls, table: Table) -> ObjectiveScale:
        """Return the scale of a table."""
        test_shots, measured = (
            slice(table.baseline.size // 2, None),
            [entry for entry in table.entries if entry.differing_shots is not None],
        )
        test_counts = [table.counts(index, test_shots) for index in range(len(table.entries))]
        gains = [
            1 - counts.errors_candidate / counts.errors_reference
            for counts in test_counts
            if counts and counts.errors_reference
        ]
        flops = [entry.flops for entry in measured if entry.flops is not None]
        sizes = [entry.n_params for entry in measured if entry.n_params is not None]
        return cls(
            max([*gains, 1e-9]),
            (min(flops, default=1), max(flops, default=1)),
            (min(sizes, default=1), max(sizes, default=1)),
        )

    def point(self, relative: float, flops: int, n_params: int) -> ParetoPoint:
        """Return a point of the front with coordinates in [0, 1], larger is better; costs on a log scale."""
        return (
            min(max(relative / self.gain, 0.0), 1.0),
            _cost_score(flops, self.flops),
            _cost_score(n_params, self.n_params),
        )


def _cost_score(value: int, bounds: tuple[int, int]) -> float:
    low, high = max(bounds[0], 1), max(bounds[1], 1)
    # The most expensive entry keeps a tenth, so that its gain still counts.
    share = 0.0 if low == high else math.log(max(value, 1) / low) / math.log(high / low)
    return 1.0 - 0.9 * min(max(share, 0.0), 1.0)


def hypervolume(points: Sequence[ParetoPoint]) -> float:
    """Return the volume of [0, 1]^3 that the points dominate, with the origin as reference point."""
    volume, below, done = 0.0, 0.0, sorted(points, key=lambda point: point[2])
    for index, point in enumerate(done):
        if point[2] > below:
            volume += (point[2] - below) * _area([(other[0], other[1]) for other in done[index:]])
            below = point[2]
    return volume


def _area(points: Sequence[tuple[float, float]]) -> float:
    area, top = 0.0, 0.0
    for x, y in sorted(points, reverse=True):
        if y > top:
            area += x * (y - top)
            top = y
    return area


def verifiable_entries(table: Table, min_gain: float = MIN_GAIN) -> list[tuple[int, ParetoPoint]]:
    """Return the index and point of every entry that the verifier would verify."""
    scale, test_shots, verifiable = ObjectiveScale.of(table), slice(table.baseline.size // 2, None), []
    for index, entry in enumerate(table.entries):
        effect = _effect(table.counts(index, test_shots))
        if effect and _verified(effect, min_gain) and effect.relative is not None and entry.flops and entry.n_params:
            verifiable.append((index, scale.point(effect.relative, entry.flops, entry.n_params)))
    return verifiable


def max_hypervolume(table: Table, min_gain: float = MIN_GAIN) -> float:
    """Return the hypervolume of all entries that the verifier would verify, which is 100%."""
    return hypervolume([point for _, point in verifiable_entries(table, min_gain)])


def paired_bootstrap(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean paired difference over seeds with its 95% bootstrap interval, resampled with a fixed seed."""
    differences = np.asarray(first, float) - np.asarray(second, float)
    rng = np.random.default_rng(0)
    means = differences[rng.integers(0, differences.size, (BOOTSTRAP_RESAMPLES, differences.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)
