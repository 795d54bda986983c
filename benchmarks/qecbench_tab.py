"""Build QECBench-Tab: train every config of the table once and store the outcome of each shot.

    python -m benchmarks.qecbench_tab                    # continues where it was stopped; Ctrl-C at any time
    python -m benchmarks.qecbench_tab --seconds 600      # start no entry after ten minutes
    python -m benchmarks.qecbench_tab --dry-run          # show how many entries exist and how many are missing

520 configs on the d=3 surface code (one training seed), 50 of them with 3 seeds at 3 fidelities, 24 on d=5. An entry
is one JSON line, appended atomically and never measured again. A config that exceeds the limits, or whose training
fails, is a regular outcome. Seconds are CPU seconds of this single-threaded process: training, and decoding each
distinct syndrome once.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoqec import locate
from autoqec.contracts.base import sha256_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import Constraints
from autoqec.contracts.profiles import PROFILES, Profile
from autoqec.decoders import flops
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import AutoqecError, RoundError
from autoqec.ideators import space
from autoqec.ideators.space import Config
from autoqec.qec import backends, sampling, stats
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.logger import TrainLogger
from autoqec.runner.spec import one_line, out_layout
from autoqec.runner.training import TrainingBudget, phases, train, training_flops
from autoqec.store import files, jsonl
from autoqec.system import machine
from benchmarks.ideators.table import DEFAULT, pack

OUT = DEFAULT
CONFIGS, MULTI_FIDELITY, LARGE = 520, 50, 24
FIDELITIES = {"full": 1.0, "quarter": 0.25, "sixteenth": 0.0625}
SEEDS = (0, 1, 2)
SMALL_ENV, LARGE_ENV = "surface_d3_depol", "surface_d5_depol"
SHOTS = {SMALL_ENV: 1_000_000, LARGE_ENV: 40_000}  # first half: validation shots; second half: verification shots
# Tighter than the envs' limits, so that refusals occur; larger networks would see too few shots to gain.
BOUNDS = Constraints(max_params=200_000, max_flops_per_syndrome=2_000_000)
# One to ten seconds on one core at full fidelity; slow networks get fewer shots instead of more time.
FULL = PROFILES["smoke"].model_copy(update={"train_shots": 65_536, "finetune_shots": 2_048, "train_gflops": 40})


@dataclass(frozen=True)
class Job:
    """One entry to measure."""

    env: str
    config: Config
    fidelity: str
    seed: int

    @property
    def key(self) -> str:
        """Identifier of the entry; entries that are in the file are not measured again."""
        return sha256_json({"env": self.env, "config": self.config, "fidelity": self.fidelity, "seed": self.seed})


def sample_configs(count: int, seed: str = "qecbench-tab") -> list[space.Config]:
    """Return the configs of a table: the templates, then distinct uniform samples, the same on every machine.

    None has a gate: entries hold the outcome of the network on every shot.
    """
    rng = random.Random(seed)
    templates = [space.without(template.config, space.OPTIONAL_KEYS) for template in space.TEMPLATES]
    configs = {space.digest(config): config for config in templates}
    while len(configs) < count:
        params: space.Params = {"type": space.DIMENSION_BY_KEY["type"].draw(rng)}
        for dimension in space.active_dimensions(params["type"]):
            if dimension.key not in ("type", *space.OPTIONAL_KEYS):
                params[dimension.key] = dimension.draw(rng)
        config = space.build(params)
        configs.setdefault(space.digest(config), config)
    return list(configs.values())[:count]


def jobs() -> list[Job]:
    """Return every entry of the table, the broad sweep first, so that an incomplete table is useful."""
    configs = sample_configs(CONFIGS)
    broad = [Job(SMALL_ENV, config, "full", SEEDS[0]) for config in configs]
    deep = [
        Job(SMALL_ENV, config, level, seed)
        for config in configs[:MULTI_FIDELITY]
        for level in FIDELITIES
        for seed in SEEDS
    ]
    large = [Job(LARGE_ENV, config, "full", SEEDS[0]) for config in configs[:LARGE]]
    return list({job.key: job for job in (*broad, *large, *deep)}.values())


def profile_of(fidelity: str) -> Profile:
    share = FIDELITIES[fidelity]
    names = ("train_shots", "finetune_shots", "train_gflops")
    return FULL.model_copy(update={name: max(1, round(getattr(FULL, name) * share)) for name in names})


class EnvBenchmark:
    """One env with the limits of the table, its benchmark shots, and the measurement of a config on them.

    Networks of the search space read only the out-of-sector detectors, and detection events are rare: a million shots
    at d=3 contain about a hundred distinct inputs and ten thousand syndromes, each of which is decoded once.
    """

    def __init__(self, env: str, shots: int) -> None:
        spec, _ = files.load_env(locate.env_file(env))
        self.env, self.problem = env, Problem.from_env(spec.model_copy(update={"constraints": BOUNDS}))
        seed = sampling.band_seed(spec.seed_policy.holdout, "qecbench-tab")
        self.shots = sampling.sample(self.problem, shots, seed)
        self.backend = backends.make_soft_backend(self.problem)
        self.plain = self._wrong(self.backend)
        self._syndromes, self._syndrome_of = np.unique(self.shots.detection_events, axis=0, return_inverse=True)
        events = sampling.unpack(self._syndromes, self.problem.n_detectors)
        events[:, self.problem.graph.in_sector] = 0
        self._inputs, self._input_of = np.unique(events, axis=0, return_inverse=True)

    def _wrong(self, backend: backends.Backend) -> np.ndarray:
        return stats.error_mask(backend.decode(self.shots.detection_events), self.shots.observables)

    def failures(self, agent: PredecoderAgent) -> np.ndarray:
        """Return bool [shots]: whether predecoder and inner decoder mispredict any observable."""
        agent.eval_mode(0)
        log_odds = agent.infer(self._inputs)[self._input_of]
        answers = self.backend.decode_soft(self._syndromes, log_odds)
        return stats.error_mask(answers[self._syndrome_of], self.shots.observables)

    def references(self) -> Iterator[dict[str, Any]]:
        """Yield the results of the env's classical decoders on the same shots."""
        spec = self.problem.env
        for name in dict.fromkeys((spec.plain, *spec.baselines)):
            failures = self._wrong(backends.make_backend(name, self.problem))
            yield {
                "kind": "reference", "key": f"{self.env}/{name}", "env": self.env, "name": name, "plain": spec.plain,
                "shots": len(self.shots), "errors": int(failures.sum()), "failures": pack(failures),
            }  # fmt: skip

    def measure(self, job: Job, profile: Profile) -> dict[str, Any]:
        """Return the line of one entry; an error in training is its outcome."""
        start, known = time.process_time(), dict[str, Any]()
        status, reason, failures = "ok", None, None
        try:
            failures = self._train_and_decode(job, profile, known)
        except AutoqecError as error:
            status, reason = getattr(error, "status", "compile_error"), one_line(str(error))
        except (ValueError, RuntimeError, MemoryError) as error:
            status, reason = "train_error", one_line(f"{type(error).__name__}: {error}")
        return {
            "kind": "cell", "key": job.key, "env": job.env, "config": job.config, "fidelity": job.fidelity,
            "seed": job.seed, "status": status, "reason": reason, "n_params": known.get("n_params"),
            "flops_per_syndrome": known.get("flops"), "final_loss": known.get("loss"),
            "seconds": round(time.process_time() - start, 3), "shots": len(self.shots),
            "errors": None if failures is None else int(failures.sum()),
            "differs": None if failures is None else pack(failures ^ self.plain),
        }  # fmt: skip

    def _train_and_decode(self, job: Job, profile: Profile, known: dict[str, Any]) -> np.ndarray:
        """Return `failures` of the trained network."""
        dsl, problem = parse_dsl(job.config), self.problem
        model = compile_predecoder(dsl, problem, seed=job.seed)
        cost = flops.count(model, problem.n_detectors)
        known |= {"n_params": cost.n_params, "flops": cost.flops_per_syndrome}
        bounds = problem.env.constraints
        if cost.n_params > bounds.max_params or cost.flops_per_syndrome > bounds.max_flops_per_syndrome:
            raise RoundError("compile_error", f"{cost} exceeds the env's limits")
        agent = PredecoderAgent(model, cost.flops_per_syndrome)
        budget = TrainingBudget.of(profile, dsl, training_flops(model, problem.n_detectors))
        with tempfile.TemporaryDirectory(prefix="qecbench-") as scratch:
            logger = TrainLogger(out_layout(Path(scratch)), snapshot_mode="none")
            train(agent, phases(problem, dsl, profile, budget, job.seed), dsl, logger, job.seed)
            known["loss"] = logger.losses[-1]
        return self.failures(agent)


def build(out: Path, todo: list[Job], *, seconds: float = float("inf"), shots: int | None = None) -> int:
    """Append the entries of `todo` that are missing in `out` and return their number; start none after `seconds`.

    shots: shots per env, instead of those of the table.
    """
    start, done, env_benchmarks = time.monotonic(), {line["key"] for line in jsonl.read(out)}, dict[str, EnvBenchmark]()
    measured = 0
    importlib.import_module("torch._dynamo")  # otherwise the first network would load it, within its measured seconds
    for job in todo:
        if job.key in done:
            continue
        if time.monotonic() - start > seconds:
            break
        if job.env not in env_benchmarks:
            env_benchmarks[job.env] = EnvBenchmark(job.env, shots or SHOTS[job.env])
            for line in env_benchmarks[job.env].references():
                if line["key"] not in done:
                    jsonl.append(out, line | {"versions": machine.versions()})
        line = env_benchmarks[job.env].measure(job, profile_of(job.fidelity))
        jsonl.append(out, line)
        measured += 1
        print(f"{measured} {job.env} {job.fidelity} {line['status']} errors {line['errors']} {line['seconds']:.1f} s")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no entry after this time")
    parser.add_argument("--limit", type=int, help="only the first N entries of the plan")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    todo = jobs()[: args.limit]
    done = {line["key"] for line in jsonl.read(args.out)}
    print(f"{sum(job.key in done for job in todo)} of {len(todo)} entries are in {args.out}")
    if not args.dry_run:
        build(args.out, todo, seconds=args.seconds)


if __name__ == "__main__":
    main()
