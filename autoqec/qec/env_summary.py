"""What an env amounts to before anything is searched on it: sizes, its baselines' error rates, a bound on distance."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.verdict import Rate
from autoqec.qec import backends, external_decoders
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import band_seed, sample
from autoqec.qec.stats import rate, wrong


@dataclass(frozen=True)
class Appraisal:
    """Figures at the env's target. inputs: what a net of this env can read. rates: by baseline, on the same shots.

    distance_bound: errors of the shortest undetected logical error found among those that flip two detectors at most;
    the code's distance in this circuit is no larger. None where there is none such.
    """

    n_detectors: int
    n_observables: int
    n_faults: int
    n_variables: int
    inputs: str
    distance_bound: int | None
    seed: int
    rates: dict[str, Rate]


def appraise(env: EnvSpec, shots: int) -> Appraisal:
    """Build the env at each of its points, and decode `shots` shots at the target. InputError on any fault."""
    external_decoders.require(env)
    problems = {p: Problem.from_env(env, p) for p in env.points}
    problem = problems[env.target]
    seed = band_seed(env.seed_policy.train, "appraise", env.name)
    drawn = sample(problem, shots, seed)
    found = {}
    for name in dict.fromkeys((env.plain, *env.baselines)):
        errors = int(wrong(backends.make(name, problem).decode(drawn.detectors), drawn.observables).sum())
        found[name] = rate(errors, shots, rounds=problem.rounds)
    return Appraisal(
        n_detectors=problem.n_detectors,
        n_observables=problem.n_observables,
        n_faults=problem.n_faults,
        n_variables=problem.graph.n_edges,
        inputs="other_sector" if len(problem.graph.other) else "all",
        distance_bound=_bound(problem),
        seed=seed,
        rates=found,
    )


def _bound(problem: Problem) -> int | None:
    try:
        return len(problem.dem.shortest_graphlike_error(ignore_ungraphlike_errors=True))
    except ValueError:
        return None


def suggested_backend(env: EnvSpec) -> str:
    """`mwpm` where the code has a matching graph, else `bposd`; env: one with backend `mwpm`. InputError as
    `Problem.from_env`, for a fault that another backend would not mend."""
    from autoqec.errors import InputError

    try:
        assert isinstance(Problem.from_env(env).graph, MatchingGraph)
        return "mwpm"
    except InputError as error:
        if "bposd" not in (error.mend or ""):
            raise
        return "bposd"
