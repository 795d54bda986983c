"""The contest: every strategy on every seed of one table, paired, with its controls."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from autoqec.contracts.messages import IdeatorResponse
from autoqec.errors import InputError
from autoqec.ideators import bench, evolve, moves, space, tpe
from autoqec.ideators import random as uniform
from autoqec.ideators.bench import Course, Propose, Rules
from autoqec.ideators.bench_table import Table, renamed, shuffled
from autoqec.ideators.hybrid import Hybrid

SEARCHES: dict[str, Propose] = {"random": uniform.propose, "tpe": tpe.propose, "evolve": evolve.propose}
CONTROLS = ("none", "renamed", "shuffled", "noop")
REFERENCE = "random"


@dataclass(frozen=True)
class Score:
    """One strategy under one control, held against `reference`; hypervolumes as shares of the best the table allows,
    means over seeds.

    final: after the last round. mean: averaged over rounds. at_equal_seconds: when the reference has spent half its
    time. gap: final minus the reference's on the same seeds, with its 95% interval. verified: rounds a run. dollars:
    of a run's calls; NaN where a price is not known.
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
    verified: float
    seconds: float
    dollars: float

    def dump(self) -> dict[str, Any]:
        return asdict(self)


class Oracle:
    """A scripted model of known quality: with this probability it names the untried config that would add most to the
    verified front, else any untried one. A quality of None gives no answer at all."""

    def __init__(self, table: Table, quality: float | None, rules: Rules) -> None:
        self._table, self._quality, self._rules = table, quality, rules
        self._points = dict(bench.verifiable(table, rules.min_gain))

    def __call__(self, view: dict[str, Any]) -> IdeatorResponse | None:
        if self._quality is None:
            return None
        state = moves.State.read(view)
        rng = state.rng("oracle")
        configs = {index: space.build(self._rules.mirror(cell.params)) for index, cell in enumerate(self._table.cells)}
        untried = [index for index in configs if state.is_new(configs[index])]
        good = [index for index in untried if index in self._points]
        if rng.random() < self._quality and good:
            have = [self._points[index] for index in configs if index not in untried and index in self._points]
            choice = max(good, key=lambda index: (bench.hypervolume([*have, self._points[index]]), -index))
        else:
            choice = rng.choice(untried or list(configs))
        move = moves.Move("oracle", "the oracle names it", configs[choice])
        return moves.reply(move, source=f"oracle {self._quality:g}")


def strategy(name: str, table: Table, rules: Rules, *, known: Iterable[str] = ()) -> Propose:
    """`tpe`, `random`, `evolve`, `hybrid:Q` (an oracle of quality Q in [0, 1]), `hybrid:none` (one without answers).

    InputError lists the known ones, and those of the caller's (`known`).
    """
    if name in SEARCHES:
        return SEARCHES[name]
    kind, _, quality = name.partition(":")
    try:
        value = None if quality == "none" else float(quality)
    except ValueError:
        value = -1.0
    if kind != "hybrid" or not (value is None or 0 <= value <= 1):
        names = f"{', '.join((*SEARCHES, *known))}, hybrid:0 … hybrid:1, hybrid:none"
        raise InputError(f"unknown strategy {name!r}", where="--strategies", mend=f"one of {names}")
    return Hybrid(Oracle(table, value, rules))


def compare(
    table: Table,
    names: Sequence[str],
    *,
    seeds: int,
    rules: Rules,
    control: str = "none",
    others: dict[str, Propose] | None = None,
    spent: Callable[[], float] = lambda: 0.0,
    references: Sequence[str] = (REFERENCE,),
    on_run: Callable[[str, int], None] = lambda name, seed: None,
) -> list[Score]:
    """Scores in the order of `names`, each held against every reference; references that were left out come first.

    others: strategies by name that this room does not know (a policy's, a language model's). spent: dollars that they
    have cost so far.
    """
    names = list(dict.fromkeys([*(one for one in references if one not in names), *names]))
    ruled = list(_ruled(table, seeds, rules, control))
    for name in names:
        if name not in (others or {}):
            strategy(name, table, rules, known=others or ())  # a wrong name is told before anything is run
    courses: dict[str, list[Course]] = {}
    for name in names:
        courses[name] = []
        for seed, mine in enumerate(ruled):
            propose = (others or {}).get(name) or strategy(name, table, mine)
            before = spent()
            own = partial(_since, spent, before)
            courses[name].append(bench.simulate(propose, table, seed=seed, rules=mine, spent=own))
            on_run(name, seed)
    best = bench.best_possible(table, rules.min_gain)
    return [_score(name, control, courses, rules, best, one) for name in names for one in references]


def _since(spent: Callable[[], float], before: float) -> float:
    return spent() - before


def _ruled(table: Table, seeds: int, rules: Rules, control: str) -> Iterator[Rules]:
    if control not in CONTROLS:
        raise InputError(f"unknown control {control!r}", where="--control", mend=f"one of {', '.join(CONTROLS)}")
    for seed in range(seeds):
        if control == "renamed":
            yield replace(rules, mirror=renamed)
        elif control == "shuffled":
            yield replace(rules, told=shuffled(table, seed))
        else:
            yield replace(rules, noop=control == "noop")


def _score(name: str, control: str, courses: dict[str, list[Course]], rules: Rules, best: float, against: str) -> Score:
    mine, reference = courses[name], courses[against]
    unit = best or 1.0
    finals = [course.hypervolume[-1] / unit for course in mine]
    gap, low, high = bench.difference(finals, [course.hypervolume[-1] / unit for course in reference])
    half = [course.seconds[-1] / 2 for course in reference]
    return Score(
        strategy=name,
        reference=against,
        control=control,
        seeds=len(mine),
        rounds=rules.rounds,
        final=statistics.mean(finals),
        mean=statistics.mean(statistics.mean(course.hypervolume) / unit for course in mine),
        at_equal_seconds=statistics.mean(
            _until(course, limit) / unit for course, limit in zip(mine, half, strict=True)
        ),
        gap=gap,
        gap_low=low,
        gap_high=high,
        verified=statistics.mean(course.verified for course in mine),
        seconds=statistics.mean(course.seconds[-1] for course in mine),
        dollars=statistics.mean(course.dollars[-1] for course in mine),
    )


def _until(course: Course, seconds: float) -> float:
    """The hypervolume when that much training was spent."""
    reached = [volume for volume, at in zip(course.hypervolume, course.seconds, strict=True) if at <= seconds]
    return reached[-1] if reached else 0.0


def sampled(count: int, seed: str = "qecbench-tab") -> list[space.Config]:
    """The configs of a table: the templates, then uniform draws of the space, none twice; the same on every machine."""
    rng = random.Random(seed)
    found = {space.digest(one.config): one.config for one in space.TEMPLATES}
    while len(found) < count:
        params: space.Params = {"type": space.BY_KEY["type"].draw(rng)}
        params |= {one.key: one.draw(rng) for one in space.active(params["type"]) if one.key != "type"}
        config = space.build(params)
        found.setdefault(space.digest(config), config)
    return list(found.values())[:count]
