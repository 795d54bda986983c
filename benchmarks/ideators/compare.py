"""Compares strategies on a table: every strategy on every seed, paired, with controls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.ideators import evolve, moves, space, tpe
from autoqec.ideators import random as uniform
from autoqec.ideators.hybrid import Hybrid
from autoqec.ideators.search_state import SearchState
from benchmarks.ideators import simulation
from benchmarks.ideators.simulation import ProposeFn, SimulatedRun, SimulationSettings
from benchmarks.ideators.table import Table, mirror_params, shuffled_indices

SEARCH_STRATEGIES: dict[str, ProposeFn] = {"random": uniform.propose, "tpe": tpe.propose, "evolve": evolve.propose}
CONTROLS = ("none", "renamed", "shuffled", "noop")
REFERENCE = "random"


@dataclass(frozen=True)
class Score:
    """One strategy under one control, compared with a reference.

    Hypervolumes are fractions of the best that the table allows, as means over seeds.

    Attributes:
        final: Hypervolume after the last round.
        mean: Hypervolume averaged over rounds.
        at_equal_seconds: Hypervolume when half of the reference's time is over.
        gap: Final minus that of the reference on the same seeds, with the 95% interval `gap_low`, `gap_high`.
        regret: Hypervolume of the reference minus that of this strategy, when both have spent half of the reference's
            training time, with the 95% interval `regret_low`, `regret_high`.
        built: Share of rounds whose proposal came from the strategy itself and built a network.
        verified: Verified rounds per run.
        seconds: Training time per run.
        dollars: Cost of the calls per run; NaN if a price is unknown.
    """

    strategy: str
    reference: str
    control: str
    seeds: int
    rounds: int
    final: float
    mean: float
    at_equal_seconds: float
    gap: float
    gap_low: float
    gap_high: float
    regret: float
    regret_low: float
    regret_high: float
    built: float
    verified: float
    seconds: float
    dollars: float

    def dump(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


class Oracle:
    """A scripted model of known quality.

    With the probability `quality` it proposes the untried config that would add most to the verified front, otherwise
    any untried config. A quality of None never answers.
    """

    def __init__(self, table: Table, quality: float | None, settings: SimulationSettings) -> None:
        self._table, self._quality, self._rules = table, quality, settings
        self._points = dict(simulation.verifiable_entries(table, settings.min_gain))

    def __call__(self, view: IdeatorView) -> IdeatorResponse | None:
        """Propose the next round."""
        if self._quality is None:
            return None
        state = SearchState.read(view)
        rng = state.rng("oracle")
        configs = {
            index: space.build(self._rules.params_transform(entry.params))
            for index, entry in enumerate(self._table.entries)
        }
        untried = [index for index in configs if state.is_new(configs[index])]
        good = [index for index in untried if index in self._points]
        if rng.random() < self._quality and good:
            have = [self._points[index] for index in configs if index not in untried and index in self._points]
            choice = max(good, key=lambda index: (simulation.hypervolume([*have, self._points[index]]), -index))
        else:
            choice = rng.choice(untried or list(configs))
        move = moves.Move("oracle", "proposed by the oracle", configs[choice])
        return moves.to_response(move, source=f"oracle {self._quality:g}")


def strategy(name: str, table: Table, settings: SimulationSettings, *, known: Iterable[str] = ()) -> ProposeFn:
    """Return a strategy: `tpe`, `random`, `evolve`, `hybrid:Q` (oracle of quality Q) or `hybrid:none` (no answers).

    Args:
        name: Name of the strategy.
        table: Table that an oracle reads.
        settings: Settings of the simulated runs.
        known: Further names that the error message lists.

    Raises:
        UsageError: The name is unknown.
    """
    if name in SEARCH_STRATEGIES:
        return SEARCH_STRATEGIES[name]
    kind, _, quality = name.partition(":")
    try:
        value = None if quality == "none" else float(quality)
    except ValueError:
        value = -1.0
    if kind != "hybrid" or not (value is None or 0 <= value <= 1):
        names = f"{', '.join((*SEARCH_STRATEGIES, *known))}, hybrid:0 … hybrid:1, hybrid:none"
        raise UsageError(f"unknown strategy {name!r}", location="--strategies", hint=f"one of {names}")
    return Hybrid(Oracle(table, value, settings))


def compare(
    table: Table,
    names: Sequence[str],
    *,
    seeds: int,
    settings: SimulationSettings,
    control: str = "none",
    extra_strategies: dict[str, ProposeFn] | None = None,
    spent_usd: Callable[[], float] = lambda: 0.0,
    references: Sequence[str] = (REFERENCE,),
    on_run: Callable[[str, int], None] = lambda name, seed: None,
) -> list[Score]:
    """Score strategies on a table.

    Args:
        table: Measured configs.
        names: Strategies to compare.
        seeds: Number of runs per strategy.
        settings: Settings of the simulated runs.
        control: One of `CONTROLS`.
        extra_strategies: Further strategies by name, such as the policy or a language model.
        spent_usd: Returns the dollars that they have cost so far.
        references: Strategies that all others are compared with.
        on_run: Called with name and seed after every run.

    Returns:
        Scores in the order of `names`, one per reference; references that are not in `names` come first.
    """
    names = list(dict.fromkeys([*(name for name in references if name not in names), *names]))
    settings_per_seed = list(_settings_per_seed(table, seeds, settings, control))
    for name in names:
        if name not in (extra_strategies or {}):
            strategy(
                name, table, settings, known=extra_strategies or ()
            )  # an unknown name is refused before the first run
    runs: dict[str, list[SimulatedRun]] = {}
    for name in names:
        runs[name] = []
        for seed, mine in enumerate(settings_per_seed):
            propose = (extra_strategies or {}).get(name) or strategy(name, table, mine)
            before = spent_usd()
            own = partial(_cost_since, spent_usd, before)
            runs[name].append(simulation.simulate(propose, table, seed=seed, settings=mine, spent_usd=own))
            on_run(name, seed)
    best = simulation.max_hypervolume(table, settings.min_gain)
    return [
        score(name, reference, runs, control=control, rounds=settings.rounds, best=best)
        for name in names
        for reference in references
    ]


def _cost_since(spent_usd: Callable[[], float], before: float) -> float:
    return spent_usd() - before


def _settings_per_seed(
    table: Table, seeds: int, settings: SimulationSettings, control: str
) -> Iterator[SimulationSettings]:
    if control not in CONTROLS:
        raise UsageError(f"unknown control {control!r}", location="--control", hint=f"one of {', '.join(CONTROLS)}")
    for seed in range(seeds):
        if control == "renamed":
            yield replace(settings, params_transform=mirror_params)
        elif control == "shuffled":
            yield replace(settings, reported=shuffled_indices(table, seed))
        else:
            yield replace(settings, noop=control == "noop")


def score(
    name: str,
    reference_name: str,
    runs: dict[str, list[SimulatedRun]],
    *,
    control: str = "none",
    rounds: int,
    best: float = 1.0,
) -> Score:
    """Score one strategy beside a reference.

    Args:
        name: The strategy.
        reference_name: The reference.
        runs: Runs of both, in the order of their seeds.
        control: Recorded in the score.
        rounds: Rounds per run.
        best: Hypervolume that counts as 1.
    """
    mine, reference = runs[name], runs[reference_name]
    unit = best or 1.0
    final_shares = [run.hypervolume[-1] / unit for run in mine]
    gap, low, high = simulation.paired_bootstrap(final_shares, [run.hypervolume[-1] / unit for run in reference])
    half = [run.elapsed[-1] / 2 for run in reference]
    mine_at_half, reference_at_half = (
        [run.hypervolume_at(limit) / unit for run, limit in zip(one, half, strict=True)] for one in (mine, reference)
    )
    regret, regret_low, regret_high = simulation.paired_bootstrap(reference_at_half, mine_at_half)
    return Score(
        strategy=name,
        reference=reference_name,
        control=control,
        seeds=len(mine),
        rounds=rounds,
        final=statistics.mean(final_shares),
        mean=statistics.mean(statistics.mean(run.hypervolume) / unit for run in mine),
        at_equal_seconds=statistics.mean(mine_at_half),
        gap=gap,
        gap_low=low,
        gap_high=high,
        regret=regret,
        regret_low=regret_low,
        regret_high=regret_high,
        built=statistics.mean(run.built / rounds for run in mine),
        verified=statistics.mean(run.verified for run in mine),
        seconds=statistics.mean(run.seconds[-1] for run in mine),
        dollars=statistics.mean(run.dollars[-1] for run in mine),
    )
