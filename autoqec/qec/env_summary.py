"""Summary of an env before a search: sizes, error rates of its baselines, and a bound on the code distance."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.env import PREDICTED, EnvSpec
from autoqec.contracts.verdict import Rate
from autoqec.errors import UsageError
from autoqec.qec import backends, external_decoders
from autoqec.qec.problem import Problem
from autoqec.qec.problem_memory import require_problem_memory
from autoqec.qec.sampling import band_seed, sample
from autoqec.qec.stats import error_mask, rate


@dataclass(frozen=True)
class EnvSummary:
    """Figures of an env at its target error rate.

    Attributes:
        n_detectors: Number of detectors.
        n_observables: Number of logical observables.
        n_mechanisms: Number of error mechanisms.
        n_variables: Number of log-odds that a predecoder outputs per shot.
        inputs: The value of `inputs` for predecoders: `other_sector` if the inner decoder ignores a sector, else `all`.
        distance_bound: Length of the shortest undetected logical error among error mechanisms that flip at most two
            detectors, an upper bound of the circuit's distance. None if there is no such logical error.
        seed: Seed of the sampled shots.
        rates: Logical error rate of each baseline on the same shots, by name.
    """

    n_detectors: int
    n_observables: int
    n_mechanisms: int
    n_variables: int
    inputs: str
    distance_bound: int | None
    seed: int
    rates: dict[str, Rate]


def summarize_env(env: EnvSpec, shots: int) -> EnvSummary:
    """Build the env at each of its error rates, and decode `shots` shots at the target with every baseline.

    Raises:
        UsageError: The env cannot be built, would need more memory than there is, or a baseline is not available.
    """
    require_problem_memory(env)
    external_decoders.require_installed(env)
    problems = {p: Problem.from_env(env, p) for p in env.points}
    problem = problems[env.target]
    seed = band_seed(env.seed_policy.train, "appraise", env.name)
    sampled = sample(problem, shots, seed)
    rates = {}
    for name in dict.fromkeys((env.plain, *env.baselines)):
        if name.startswith(PREDICTED):
            continue  # there are no predictions of sampled shots
        predictions = backends.make_baseline(name, problem).decode(sampled.detection_events)
        errors = int(error_mask(predictions, sampled.observables).sum())
        rates[name] = rate(errors, shots, rounds=problem.rounds)
    return EnvSummary(
        n_detectors=problem.n_detectors,
        n_observables=problem.n_observables,
        n_mechanisms=problem.n_mechanisms,
        n_variables=problem.graph.n_edges,
        inputs="other_sector" if len(problem.graph.out_of_sector) else "all",
        distance_bound=_distance_bound(problem),
        seed=seed,
        rates=rates,
    )


def _distance_bound(problem: Problem) -> int | None:
    try:
        return len(problem.dem.shortest_graphlike_error(ignore_ungraphlike_errors=True))
    except ValueError:
        return None


def suggest_backend(env: EnvSpec) -> str:
    """Return `mwpm` if the env's circuit has a matching graph, else `bposd`.

    Args:
        env: An env with backend `mwpm`.

    Raises:
        UsageError: The env can be built with neither, or would need more memory than there is.
    """
    require_problem_memory(env.model_copy(update={"backend": "bposd"}))  # its model needs no decomposition
    try:
        Problem.from_env(env)
        return "mwpm"
    except UsageError:
        Problem.from_env(env.model_copy(update={"backend": "bposd"}))
        return "bposd"
