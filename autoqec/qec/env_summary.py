"""What an env amounts to before anything is searched on it: sizes, its baselines' error rates, a bound on distance."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.verdict import Rate
from autoqec.qec import backends, external_decoders
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import band_seed, sample
from autoqec.qec.stats import error_mask, rate


@dataclass(frozen=True)
class EnvSummary:
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


def summarize_env(env: EnvSpec, shots: int) -> EnvSummary:
    """Build the env at each of its points, and decode `shots` shots at the target. UsageError on any fault."""
    external_decoders.require_installed(env)
    problems = {p: Problem.from_env(env, p) for p in env.points}
    problem = problems[env.target]
    seed = band_seed(env.seed_policy.train, "appraise", env.name)
    sampled = sample(problem, shots, seed)
    found = {}
    for name in dict.fromkeys((env.plain, *env.baselines)):
        errors = int(
            error_mask(backends.make_backend(name, problem).decode(sampled.detection_events), sampled.observables).sum()
        )
        found[name] = rate(errors, shots, rounds=problem.rounds)
    return EnvSummary(
        n_detectors=problem.n_detectors,
        n_observables=problem.n_observables,
        n_faults=problem.n_mechanisms,
        n_variables=problem.graph.n_edges,
        inputs="other_sector" if len(problem.graph.out_of_sector) else "all",
        distance_bound=_distance_bound(problem),
        seed=seed,
        rates=found,
    )


def _distance_bound(problem: Problem) -> int | None:
    try:
        return len(problem.dem.shortest_graphlike_error(ignore_ungraphlike_errors=True))
    except ValueError:
        return None


def suggest_backend(env: EnvSpec) -> str:
    """`mwpm` where the code has a matching graph, else `bposd`; env: one with backend `mwpm`. UsageError as
    `Problem.from_env`, for a fault that another backend would not mend."""
    from autoqec.errors import UsageError

    try:
        assert isinstance(Problem.from_env(env).graph, MatchingGraph)
        return "mwpm"
    except UsageError as error:
        if "bposd" not in (error.hint or ""):
            raise
        return "bposd"
