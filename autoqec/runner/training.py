"""The phases of a round's training: edge labels first, then, near failure, through the matching itself."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.profiles import Profile
from autoqec.errors import InputError
from autoqec.qec.classes import TwoClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algos import GradientAlgo, SupervisedEdges, ThroughMatching
from autoqec.runner.logger import TrainLogger
from autoqec.runner.minibatch import MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler, ShotSampler

LOOPS: dict[str, type[MinibatchRlBase]] = {"minibatch": MinibatchRl, "minibatch_eval": MinibatchRlEval}
LOG_LINES = 20  # a phase
EVAL_SHARE = 0.1  # of the profile's val shots, for one offline evaluation
FINETUNE_BATCH = 64


@dataclass(frozen=True)
class Budget:
    """Shots of either phase: what the profile gives and the config asks for, capped by the net's cost."""

    train_shots: int
    finetune_shots: int

    @classmethod
    def of(cls, profile: Profile, dsl: PredecoderDSL, flops_per_shot: int) -> Budget:
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


def phases(problem: Problem, dsl: PredecoderDSL, profile: Profile, budget: Budget, seed: int) -> list[Phase]:
    """In order. Fine-tuning is left out where nothing is matched under two classes (see `can_finetune`)."""
    recipe = dsl.training
    eval_shots = max(1, int(profile.val_shots * EVAL_SHARE))
    found = [
        Phase(
            "training",
            EdgeLabelSampler(problem, recipe.batch_size, seed, eval_shots=eval_shots),
            SupervisedEdges(learning_rate=recipe.learning_rate, weight_decay=recipe.weight_decay, loss=recipe.loss),
            budget.train_shots,
        )
    ]
    if recipe.finetune_share > 0 and can_finetune(problem, dsl):
        near = NearFailureSampler(problem, FINETUNE_BATCH, seed, gap=recipe.finetune_gap, eval_shots=eval_shots)
        algo = ThroughMatching(problem, learning_rate=recipe.finetune_learning_rate)
        found.append(Phase("finetuning", near, algo, budget.finetune_shots))
    return found


def can_finetune(problem: Problem, dsl: PredecoderDSL) -> bool:
    """Whether the predecoder sets the weights of a matching whose two logical classes a cut separates."""
    if dsl.output_mode != "soft_priors":
        return False
    try:
        TwoClassMatcher(problem)
    except InputError:
        return False
    return True


def train(agent: PredecoderAgent, plan: list[Phase], dsl: PredecoderDSL, logger: TrainLogger, seed: int) -> int:
    """Run the phases through the config's loop; returns the shots trained on. RoundFailed on a loss not finite."""
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
        )
        before = len(logger.losses)
        loop.train()
        trained += (len(logger.losses) - before) * phase.sampler.batch_size
    return trained
