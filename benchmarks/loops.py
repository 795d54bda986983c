"""Measure training loops: several processes against one, and flips learned by reward. Part of `make bench`."""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoqec.contracts.dsl import PredecoderDSL, ReplayConfig, parse_dsl
from autoqec.contracts.profiles import PROFILES
from autoqec.decoders import flops
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec import backends, sampling, stats
from autoqec.qec.problem import Problem
from autoqec.runner import AsyncRl, MinibatchRl
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import SupervisedEdges
from autoqec.runner.logger import TrainLogger
from autoqec.runner.samplers import EdgeLabelSampler
from autoqec.runner.training import Phase, TrainingBudget, phases
from autoqec.store.layout import RoundLayout
from benchmarks.bench import surface
from benchmarks.table import Row, record

SEED = 1
UPDATES, BATCH, PARTS = 200, 256, 60
LABELLED, REWARDED, TESTED = 400_000, 200_000, 200_000
REWARD_RATE = 1e-3
STEPS = 20


def hard_flip(training: dict[str, Any], hidden: int) -> PredecoderDSL:
    block = {"inputs": "all", "hidden": hidden, "depth": 2}
    return parse_dsl({"type": "mlp", "mlp": block, "output_mode": "hard_flip", "training": training})


def agent_of(problem: Problem, dsl: PredecoderDSL) -> PredecoderAgent:
    model = compile_predecoder(dsl, problem, seed=SEED)
    return PredecoderAgent(model, flops.count(model, problem.n_detectors).flops_per_syndrome)


def training_phases(problem: Problem, dsl: PredecoderDSL, labelled: int, rewarded: int) -> list[Phase]:
    return phases(problem, dsl, PROFILES["dev"], TrainingBudget(labelled, rewarded), SEED)


def run(kind: type[MinibatchRl], agent: PredecoderAgent, phase: Phase, **more: Any) -> list[dict[str, str]]:
    """Train and return the lines of progress.csv."""
    with tempfile.TemporaryDirectory() as directory:
        layout = RoundLayout(Path(directory), 1)
        settings = {"agent": agent, "sampler": phase.sampler, "algo": phase.algo, "logger": TrainLogger(layout)}
        n = phase.n_shots
        kind(**settings, n_steps=n, log_interval_steps=n // 4, seed=SEED, **more).train()
        with layout.progress.open(encoding="utf-8") as stream:
            return list(csv.DictReader(stream))


def speed_rows(distance: int) -> list[Row]:
    """Measure policy gradient with the decoder in the sampler: one process against sampler, copier and optimizer."""
    problem = surface(distance)
    training = {"batch_size": BATCH, "policy_gradient": {}}
    dsl = hard_flip(training, 256)
    phase = training_phases(problem, dsl, BATCH, UPDATES * BATCH)[1]
    alone = float(run(MinibatchRl, agent_of(problem, dsl), phase)[-1]["CumTrainTime"]) / UPDATES
    sample, update = batch_cpu_s(problem, dsl)
    replay = ReplayConfig(throttle="both")
    apart_dsl = hard_flip(training | {"loop": "async", "replay": replay.dump()}, 256)
    phase = training_phases(problem, apart_dsl, BATCH, UPDATES * BATCH)[1]
    last = run(AsyncRl, agent_of(problem, apart_dsl), phase, build=phase.build, replay=replay)[-1]
    apart = float(last["CumTrainTime"]) / int(last["CumUpdates"])
    return [
        Row(
            f"AsyncRl, updates in the same wall-clock time, d={distance} p=.005, replay ratio 1",
            f"{alone / apart:.2f} x ({1e3 * apart:.1f} ms per update)",
            f"MinibatchRl ({1e3 * alone:.1f} ms per update), policy gradient, decoder in the sampler; aim: >= 1.5 x",
            f"{UPDATES} and {last['CumUpdates']} updates of {BATCH} shots, once each; load {load()}",
        ),
        Row(
            f"upper bound of the gain by separate sampling, d={distance} p=.005",
            f"{(sample + update) / max(sample, update):.2f} x",
            f"CPU time of a batch: {1e3 * sample:.1f} ms to draw, act and decode, {1e3 * update:.1f} ms to learn from",
            f"{PARTS} batches of {BATCH} shots",
        ),
    ]


def batch_cpu_s(problem: Problem, dsl: PredecoderDSL) -> tuple[float, float]:
    """Return CPU seconds of the sampler and of the algorithm for one batch, in one process."""
    phase, agent = training_phases(problem, dsl, BATCH, UPDATES * BATCH)[1], agent_of(problem, dsl)
    phase.sampler.initialize(agent)
    phase.algo.initialize(agent, n_itr=UPDATES, batch_size=BATCH)
    durations: list[tuple[float, float]] = []
    for itr in range(PARTS):
        start = time.process_time()
        samples, _ = phase.sampler.obtain_samples(itr)
        drawn = time.process_time()
        phase.algo.optimize_agent(itr, samples)
        durations.append((drawn - start, time.process_time() - drawn))
    # Near-failure shots come from draws that serve many batches: the cost of a batch is their mean, not their median.
    return float(np.mean([sample_s for sample_s, _ in durations])), float(
        np.median([update_s for _, update_s in durations])
    )


@dataclass(frozen=True)
class Measured:
    failed: np.ndarray
    residual: float
    us: float


def measure(problem: Problem, agent: PredecoderAgent | None, shots: sampling.Shots) -> Measured:
    """Return decoding errors, remaining detection events, and CPU time of the decoder per shot. None: no predecoder."""
    plain = backends.make_backend(problem.env.backend, problem)
    cleaned, frame = shots.detection_events, np.zeros_like(shots.observables)
    if agent is not None:
        flipper = backends.HardFlipBackend(problem, plain)
        parts = [
            flipper.apply(packed, agent.infer(sampling.unpack(packed, problem.n_detectors)) > 0)
            for packed in np.array_split(shots.detection_events, max(1, len(shots) // 4096))
        ]
        cleaned, frame = (np.concatenate(found) for found in zip(*parts, strict=True))
    durations = []
    for _ in range(5):
        start = time.process_time()
        answers = plain.decode(cleaned)
        durations.append(time.process_time() - start)
    failed = ((answers ^ frame) != shots.observables).any(axis=1)
    return Measured(
        failed, float(np.bitwise_count(cleaned).sum() / len(shots)), 1e6 * sorted(durations)[2] / len(shots)
    )


def flip_rows() -> list[Row]:
    """Measure hard_flip at d=5, trained by labels, then by reward."""
    problem = surface(5)
    dsl = hard_flip({"batch_size": BATCH, "finetune_learning_rate": REWARD_RATE, "policy_gradient": {}}, 384)
    agent = agent_of(problem, dsl)
    shots = sampling.sample(problem, TESTED, sampling.band_seed(problem.env.seed_policy.holdout, "loops"))
    labels, reward = training_phases(problem, dsl, LABELLED, REWARDED)
    found = {"no predecoder": measure(problem, None, shots)}
    run(MinibatchRl, agent, labels)
    agent.eval_mode(0)
    found["labels only"] = measure(problem, agent, shots)
    run(MinibatchRl, agent, reward)
    agent.eval_mode(0)
    found["labels, then policy gradient"] = measure(problem, agent, shots)
    plain = found["no predecoder"]
    rows = []
    for name, result in found.items():
        low, high = stats.clopper_pearson(int(result.failed.sum()), TESTED)
        against = "fresh holdout shots, the same for all rows"
        if result is not plain:
            fixed, broken = (
                int((plain.failed & ~result.failed).sum()),
                int((~plain.failed & result.failed).sum()),
            )
            against = f"no predecoder: {fixed} shots fixed, {broken} broken"
        rows.append(
            Row(
                f"hard_flip d=5 p=.005, {name}",
                f"LER {result.failed.mean():.3e} [{low:.3e}, {high:.3e}], {result.residual:.2f} detection events left, "
                f"{result.us:.2f} µs per shot in the decoder",
                against,
                f"{TESTED:,} shots; {LABELLED:,} labelled, {REWARDED:,} near-failure shots by reward, seed {SEED}",
            )
        )
    return rows


# name, distance, config, batch size
NETS: tuple[tuple[str, int, dict[str, Any], int], ...] = (
    ("dense template, d=5", 5, {"type": "mlp", "mlp": {}}, 512),
    ("dense template, d=7", 7, {"type": "mlp", "mlp": {}}, 512),
    ("dense hard_flip, d=7", 7, {"type": "mlp", "mlp": {"inputs": "all"}, "output_mode": "hard_flip"}, 256),
    ("graph network, d=5", 5, {"type": "gnn", "gnn": {}}, 128),
)


def precision_rows() -> list[Row]:
    """Measure one supervised step in bfloat16 (autocast) and compiled, against eager float32."""
    rows = []
    for name, distance, config, batch in NETS:
        problem = surface(distance)
        plain, _ = step(problem, config, batch)
        bfloat16, _ = step(problem, config, batch, bfloat16=True)
        with tempfile.TemporaryDirectory() as directory:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = directory  # the network of a branch is new: nothing is compiled yet
            compiled_s, first = step(problem, config, batch, compiled=True)
        rows.append(
            Row(
                f"a training step in other precision, {name}",
                f"bfloat16 {plain / bfloat16:.2f} x, "
                f"torch.compile {plain / compiled_s:.2f} x (first step {first:.0f} s)",
                f"float32, {1e3 * plain:.1f} ms of CPU",
                f"median of {STEPS} steps of {batch} shots each, one core; load {load()}",
            )
        )
    return rows


def step(
    problem: Problem, config: dict[str, Any], batch: int, *, bfloat16: bool = False, compiled: bool = False
) -> tuple[float, float]:
    """Return CPU seconds of one supervised step, and wall-clock seconds of the first."""
    agent = agent_of(problem, parse_dsl(config))
    sampler, algo = EdgeLabelSampler(problem, batch, SEED), SupervisedEdges(learning_rate=1e-3, weight_decay=0.0)
    sampler.initialize(agent)
    algo.initialize(agent, n_itr=STEPS, batch_size=batch)
    samples, _ = sampler.obtain_samples(0)
    if compiled:
        agent.model = torch.compile(agent.model)
    durations, start = [], time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        algo.optimize_agent(0, samples)
        first = time.perf_counter() - start
        for itr in range(STEPS):
            before = time.process_time()
            algo.optimize_agent(itr, samples)
            durations.append(time.process_time() - before)
    return float(np.median(durations)), first


def load() -> str:
    """Return the load average of the last minute."""
    return Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "unknown"


SUITES: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "speed": ("several processes", lambda: speed_rows(7)),
    "flips": ("hard_flip by reward", flip_rows),
    "precision": ("precision and compilation", precision_rows),
}


def main(parts: list[str]) -> None:
    """Measure the named parts (speed, flips, precision), by default the first two."""
    torch.set_num_threads(1)
    for part in parts or ["speed", "flips"]:
        suite, measured = SUITES[part]
        rows = measured()
        record(f"training loops: {suite}", rows)
        for row in rows:
            print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
