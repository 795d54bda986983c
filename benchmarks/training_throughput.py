"""Training shots per CPU second: labelled shots and shots near failure, drawn alone and trained on, in one thread.

    python -m benchmarks.training_throughput 5 7

Draws until `SECONDS` of CPU time have passed, then trains the dense network of the default search, without a gate, on
`TRAINED` shots of each phase. Rotated surface code, memory Z, as many rounds as the distance, p = .005.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
from autoqec.contracts.profiles import PROFILES
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.family import build_agent
from autoqec.runner.logger import TrainLogger
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler, ShotSampler
from autoqec.runner.training import TrainingBudget, phases, train
from autoqec.store.layout import RoundLayout

SECONDS = 6.0
TRAINED = TrainingBudget(train_shots=20_480, finetune_shots=2_048)
SEED = 1
CONFIG = PredecoderDSL.model_validate(
    {
        "type": "mlp",
        "mlp": {"inputs": "other_sector", "hidden": 256, "depth": 2, "activation": "relu", "skip": True},
        "head": "linear",
        "training": {
            "loss": "bce", "learning_rate": 0.0045, "batch_size": 512, "weight_decay": 0.0001,
            "finetune_learning_rate": 0.0003, "finetune_share": 1.0, "finetune_gap": 6.0,
        },
    }
)  # fmt: skip


def main() -> None:
    """Print shots per CPU second of each part for the distances on the command line."""
    torch.set_num_threads(1)
    for distance in map(int, sys.argv[1:] or ("5", "7")):
        problem = Problem.from_env(_env(distance))
        agent = build_agent(compile_predecoder(CONFIG, problem, seed=SEED), CONFIG, problem)
        training = CONFIG.training
        drawn = {
            "labelled shots drawn": EdgeLabelSampler(problem, training.batch_size, SEED),
            "shots near failure drawn": NearFailureSampler(problem, 64, SEED, gap=training.finetune_gap),
        }
        for name, sampler in drawn.items():
            print(f"d={distance} {name}: {_drawn_per_second(sampler, agent):,.0f} per CPU second")
        for name, rate in _trained_per_second(problem, agent).items():
            print(f"d={distance} {name}: {rate:,.0f} per CPU second")


def _env(distance: int) -> EnvSpec:
    return EnvSpec(
        name="throughput",
        code=StimGeneratorCode(task="surface_code:rotated_memory_z", distance=distance, rounds=distance),
        noise=CircuitDepolarizing(p=(0.005,), target_p=0.005),
        seed_policy=SeedPolicy(train=(0, 999_999_999), val=(10**9, 2 * 10**9 - 1), holdout=(2 * 10**9, 3 * 10**9 - 1)),
    )


def _drawn_per_second(sampler: ShotSampler, agent: PredecoderAgent) -> float:
    sampler.initialize(agent)
    sampler.obtain_samples(0)  # set-up
    shots, start = 0, time.process_time()
    while time.process_time() - start < SECONDS:
        shots += len(sampler._draw()[0])
    return shots / (time.process_time() - start)


def _trained_per_second(problem: Problem, agent: PredecoderAgent) -> dict[str, float]:
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        logger = TrainLogger(RoundLayout(Path(place), 0))
        for phase in phases(problem, CONFIG, PROFILES["dev"], TRAINED, SEED):
            start = time.process_time()
            rates[f"shots of {phase.name}"] = train(agent, [phase], CONFIG, logger, SEED) / (
                time.process_time() - start
            )
    return rates


if __name__ == "__main__":
    main()
