"""The phases of a round's training: edge labels first, then, near failure, through the matching itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import Profile
from autoqec.decoders import flops, overlay
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import UsageError
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, MatchingFinetune, SupervisedEdges
from autoqec.runner.logger import TrainLogger
from autoqec.runner.loops.async_rl import AsyncRl, AsyncRlEval
from autoqec.runner.loops.minibatch import MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.loops.sync import SyncRl, SyncRlEval
from autoqec.runner.policy_gradient import PolicyGradient, PolicySampler
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler, ShotSampler

LOOPS: dict[str, type[MinibatchRlBase]] = {
    "minibatch": MinibatchRl,
    "minibatch_eval": MinibatchRlEval,
    "sync": SyncRl,
    "sync_eval": SyncRlEval,
    "async": AsyncRl,
    "async_eval": AsyncRlEval,
}
LOG_LINES = 20  # a phase
EVAL_SHARE = 0.1  # of the profile's val shots, for one offline evaluation
FINETUNE_BATCH = 64


@dataclass(frozen=True)
class TrainingBudget:
    """Shots of either phase: what the profile gives and the config asks for, capped by the net's cost."""

    train_shots: int
    finetune_shots: int

    @classmethod
    def of(cls, profile: Profile, dsl: PredecoderDSL, flops_per_shot: int) -> TrainingBudget:
        """flops_per_shot: weighted work of one training shot (`work.training_flops`)."""
        affordable = int(profile.train_gflops * 1e9 / max(flops_per_shot, 1))
        wanted = int(profile.finetune_shots * dsl.training.finetune_share)
        # A slow net gives up the same share of both phases.
        share = min(1.0, affordable / (profile.train_shots + wanted))
        return cls(int(profile.train_shots * share), int(wanted * share))


@dataclass(frozen=True, eq=False)
class Phase:
    name: str
    sampler: ShotSampler
    algo: GradientAlgo
    n_shots: int
    build: PhaseFactory


@dataclass(frozen=True)
class PhaseFactory:
    """Makes one phase's agent, sampler and algorithm again in another process, from values alone.

    No module of a branch is pickled: the process mounts the same search surface and builds from it.
    """

    env: EnvSpec
    dsl: PredecoderDSL
    profile: Profile
    budget: TrainingBudget
    seed: int
    phase: str
    modules_dir: Path | None
    threads: int

    def __call__(self) -> tuple[PredecoderAgent, ShotSampler, GradientAlgo]:
        torch.set_num_threads(self.threads)
        overlay.use_modules_dir(self.modules_dir)
        problem = Problem.from_env(self.env)
        model = compile_predecoder(self.dsl, problem, seed=self.seed)
        agent = PredecoderAgent(model, flops.count(model, problem.n_detectors).flops_per_syndrome)
        plan = phases(problem, self.dsl, self.profile, self.budget, self.seed)
        phase = next(phase for phase in plan if phase.name == self.phase)
        return agent, phase.sampler, phase.algo


def phases(problem: Problem, dsl: PredecoderDSL, profile: Profile, budget: TrainingBudget, seed: int) -> list[Phase]:
    """In order. Fine-tuning goes through the matching (see `can_finetune`), or by reward where the config says so."""
    training_config = dsl.training
    eval_shots = max(1, int(profile.val_shots * EVAL_SHARE))
    gaps = training_config.replay is not None and training_config.replay.near_failure > 0

    def phase_factory(name: str) -> PhaseFactory:
        threads = torch.get_num_threads()
        return PhaseFactory(problem.env, dsl, profile, budget, seed, name, overlay.current_modules_dir(), threads)

    found = [
        Phase(
            "training",
            EdgeLabelSampler(problem, training_config.batch_size, seed, gaps=gaps, eval_shots=eval_shots),
            SupervisedEdges(
                learning_rate=training_config.learning_rate,
                weight_decay=training_config.weight_decay,
                loss=training_config.loss,
            ),
            budget.train_shots,
            phase_factory("training"),
        )
    ]
    if training_config.finetune_share > 0 and training_config.policy_gradient is not None:
        reward = training_config.policy_gradient.dump()
        gap = training_config.finetune_gap
        policy_sampler = PolicySampler(
            problem, training_config.batch_size, seed, gap=gap, eval_shots=eval_shots, **reward
        )
        policy_algo = PolicyGradient(learning_rate=training_config.finetune_learning_rate, **reward)
        found.append(
            Phase("finetuning", policy_sampler, policy_algo, budget.finetune_shots, phase_factory("finetuning"))
        )
    if training_config.finetune_share > 0 and can_finetune(problem, dsl):
        near_sampler = NearFailureSampler(
            problem, FINETUNE_BATCH, seed, gap=training_config.finetune_gap, eval_shots=eval_shots
        )
        algo = MatchingFinetune(problem, learning_rate=training_config.finetune_learning_rate)
        found.append(Phase("finetuning", near_sampler, algo, budget.finetune_shots, phase_factory("finetuning")))
    return found


def can_finetune(problem: Problem, dsl: PredecoderDSL) -> bool:
    """Whether the predecoder sets the weights of a matching whose two logical classes a cut separates."""
    if dsl.output_mode != "soft_priors":
        return False
    try:
        LogicalClassMatcher(problem)
    except UsageError:
        return False
    return True


def train(agent: PredecoderAgent, plan: list[Phase], dsl: PredecoderDSL, logger: TrainLogger, seed: int) -> int:
    """Run the phases through the config's loop; returns the shots trained on. RoundError on a loss not finite."""
    trained = 0
    for phase in plan:
        logger.begin(phase.name)
        loop = LOOPS[dsl.training.loop](
            algo=phase.algo,
            agent=agent,
            sampler=phase.sampler,
            logger=logger,
            n_steps=phase.n_shots,
            log_interval_steps=max(1, phase.n_shots // LOG_LINES),
            seed=seed,
            **loop_options(dsl, phase),
        )
        loop.train()
        trained += loop.cum_steps
    return trained


def loop_options(dsl: PredecoderDSL, phase: Phase) -> dict[str, Any]:
    """What a loop over many processes is told beside the rest."""
    training_config = dsl.training
    if training_config.sync is not None:
        return {"build": phase.build, "world_size": training_config.sync.ranks, "backend": training_config.sync.backend}
    return {"build": phase.build, "replay": training_config.replay} if training_config.replay is not None else {}
