"""Training of one `local` predecoder on several distances, and its failures on circuits it was not trained on.

`python -m benchmarks.local_predecoder train OUT.pt 5,7 SHOTS NEAR_FAILURE_SHOTS`, then
`python -m benchmarks.local_predecoder measure OUT.pt DISTANCE ROUNDS P SHOTS SEED [tesseract]`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
from autoqec.decoders import checkpoint, flops
from autoqec.decoders.base import Predecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec import backends, sampling
from autoqec.qec.problem import Problem
from autoqec.qec.stats import count_pairs, error_mask, paired_effect
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import MatchingFinetune, OptInfo, SupervisedEdges
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler, ShotSampler
from autoqec.runner.samples import Samples

TRAINING_P, SEED, LOG_STEPS = 0.005, 1, 200
EDGES_PER_STEP = 20_000  # the distances take turns, with batches of about this many edges
EDGE_SCALE = 300
FINETUNE_BATCH = 64
CHUNK = 10_000
FIRST_SEED = 2**32  # of measurements; training draws below it
BANDS = SeedPolicy(train=(0, 2**31), val=(2**31 + 1, 2**31 + 2), holdout=(2**31 + 3, 2**31 + 4))
DSL = parse_dsl({"type": "local", "local": {"hidden": 32, "space": 1, "time": 2}, "training": {"learning_rate": 0.01}})


def surface(distance: int, rounds: int, p: float) -> Problem:
    """Return the rotated surface code with this distance, number of rounds and error rate, memory in the Z basis."""
    code = StimGeneratorCode(task="surface_code:rotated_memory_z", distance=distance, rounds=rounds)
    noise = CircuitDepolarizing(p=(p,), target_p=p)
    return Problem.from_env(EnvSpec(name=f"surface_d{distance}", code=code, noise=noise, seed_policy=BANDS))


class EdgeMean(SupervisedEdges):
    """Cross-entropy per edge, times that of EDGE_SCALE edges, so that every distance weighs the same."""

    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        """See `SupervisedEdges.loss`."""
        assert samples.edges is not None
        loss, info = super().loss(samples, n)
        return loss * EDGE_SCALE / samples.edges.shape[1], info


def share_parameters(source: Predecoder, target: Predecoder) -> None:
    """Make `target` use the parameters of `source`, which has the same classes of edges."""
    for name, parameter in source.named_parameters():
        *path, last = name.split(".")
        setattr(target.get_submodule(".".join(path)), last, parameter)


def train(out: Path, distances: list[int], shots: int, near_failure_shots: int) -> None:
    """Train on edge labels, then through the matching; the distances take turns.

    Args:
        out: The checkpoint.
        distances: Distances of the rotated surface code, with as many rounds.
        shots: Labelled shots in all.
        near_failure_shots: Shots of fine-tuning in all.
    """
    start = time.process_time()
    problems = [surface(distance, distance, TRAINING_P) for distance in distances]
    models = [compile_predecoder(DSL, problem, seed=SEED) for problem in problems]
    for model in models[1:]:
        share_parameters(models[0], model)
    agents = [
        PredecoderAgent(model, flops.count(model, problem.n_detectors).flops_per_syndrome)
        for model, problem in zip(models, problems, strict=True)
    ]
    training = DSL.training
    batches = [max(8, EDGES_PER_STEP // problem.matching_graph.n_edges) for problem in problems]
    samplers: list[ShotSampler] = [EdgeLabelSampler(*each, SEED) for each in zip(problems, batches, strict=True)]
    supervised = [EdgeMean(learning_rate=training.learning_rate, weight_decay=training.weight_decay) for _ in problems]
    take_turns("labels", supervised, agents, samplers, shots)
    if near_failure_shots:
        near: list[ShotSampler] = [
            NearFailureSampler(problem, FINETUNE_BATCH, SEED, gap=training.finetune_gap) for problem in problems
        ]
        through = [MatchingFinetune(problem, learning_rate=training.finetune_learning_rate) for problem in problems]
        take_turns("near failure", through, agents, near, near_failure_shots)
    checkpoint.save(out, models[0], DSL)
    print(f"{out}: {flops.count(models[0], problems[0].n_detectors)}, {time.process_time() - start:.0f} CPU s")


def take_turns(
    name: str, algos: list[Any], agents: list[PredecoderAgent], samplers: list[ShotSampler], shots: int
) -> None:
    """Train the shared parameters with one optimizer, one batch of each problem after the other."""
    n_itr = max(1, shots * len(samplers) // sum(sampler.batch_size for sampler in samplers))
    for algo, agent, sampler in zip(algos, agents, samplers, strict=True):
        sampler.initialize(agent)
        algo.initialize(agent, n_itr=n_itr, batch_size=sampler.batch_size)
        algo.optimizer = algos[0].optimizer
        if hasattr(algo, "log_alpha"):
            algo.log_alpha = algos[0].log_alpha
    total = 0.0
    for itr in range(n_itr):
        turn = itr % len(algos)
        samples, _ = samplers[turn].obtain_samples(itr)
        agents[turn].train_mode(itr)
        total += algos[turn].optimize_agent(itr, samples)["loss"]
        if (itr + 1) % LOG_STEPS == 0:
            print(f"{name}: step {itr + 1} of {n_itr}, loss {total / LOG_STEPS:.4f}", flush=True)
            total = 0.0


def measure(weights: Path, distance: int, rounds: int, p: float, shots: int, seed: int, *, tesseract: bool) -> None:
    """Decode fresh shots by the predecoder and by the baselines; print counts and intervals as one JSON line."""
    dsl: PredecoderDSL = parse_dsl(checkpoint.read(weights)["dsl_config"])
    problem = surface(distance, rounds, p)
    model, known = checkpoint.load_for_other_circuit(weights, problem)
    agent = PredecoderAgent(model, flops.count(model, problem.n_detectors).flops_per_syndrome)
    soft = backends.make_soft_backend(problem, dsl.output_mode)
    names = ["mwpm", "mwpm_correlated", *(["tesseract"] if tesseract else [])]
    decoders = {name: backends.make_backend(name, problem) for name in names}
    wrong: dict[str, list[Any]] = {name: [] for name in [*names, "local"]}
    start = time.process_time()
    net_seconds = 0.0
    for chunk in range(0, shots, CHUNK):
        drawn = sampling.sample(problem, min(CHUNK, shots - chunk), FIRST_SEED + seed + chunk)
        for name, decoder in decoders.items():
            wrong[name].append(error_mask(decoder.decode(drawn.detection_events), drawn.observables))
        begin = time.process_time()
        for part in agent.parts(len(drawn)):
            events = drawn.detection_events[part]
            log_odds = agent.infer(sampling.unpack(events, problem.n_detectors))
            wrong["local"].append(error_mask(soft.decode_soft(events, log_odds), drawn.observables[part]))
        net_seconds += time.process_time() - begin
    failed = {name: torch.cat([torch.from_numpy(part) for part in parts]).numpy() for name, parts in wrong.items()}
    line: dict[str, Any] = {"weights": weights.name, "distance": distance, "rounds": rounds, "p": p, "shots": shots,
                            "seed": seed, "unknown_edges": int((~known).sum()),
                            "failures": {name: int(mask.sum()) for name, mask in failed.items()}}  # fmt: skip
    for name in names:
        counts = count_pairs(failed[name], failed["local"])
        effect = paired_effect(counts, reference=name)
        line[f"fewer than {name}"] = [effect.relative, effect.relative_low, effect.relative_high]
        line[f"fixed, broken against {name}"] = [counts.fixed, counts.broken]
    line |= {"us_per_shot": round(1e6 * net_seconds / shots), "cpu_s": round(time.process_time() - start)}
    print(json.dumps(line), flush=True)


def main(argv: list[str]) -> None:
    """Run `train` or `measure`."""
    torch.set_num_threads(1)
    command, weights, *rest = argv
    if command == "train":
        train(Path(weights), [int(distance) for distance in rest[0].split(",")], int(rest[1]), int(rest[2]))
    else:
        distance, rounds, p, shots, seed = int(rest[0]), int(rest[1]), float(rest[2]), int(rest[3]), int(rest[4])
        measure(Path(weights), distance, rounds, p, shots, seed, tesseract="tesseract" in rest[5:])


if __name__ == "__main__":
    main(sys.argv[1:])
