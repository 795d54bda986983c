"""Training of a round: the phases, their budgets, and the loop that runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoqec import plugins
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import Profile
from autoqec.decoders import overlay
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import UsageError
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, MatchingFinetune, SupervisedEdges
from autoqec.runner.devices import POLICY_GRADIENT
from autoqec.runner.family import FamilyAlgo, FamilySampler, build_agent, member_problems
from autoqec.runner.logger import TrainLogger
from autoqec.runner.minibatch import find_loop
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler, Sampler

LOG_LINES = 20  # rows of progress.csv per phase
EVAL_SHARE = 0.1  # share of the profile's val shots in one offline evaluation
FINETUNE_BATCH = 64
# Fitted on 13 networks (dense and graph, one core, 2 x AVX-512): seconds = 1.1e-11 x (matrix flops + 25 x elements
# written), within a factor 1.8 either way. Backward costs twice forward.
FLOPS_PER_ELEMENT = 25
FORWARD_AND_BACKWARD = 3


@dataclass(frozen=True)
class TrainingBudget:
    """Shots of each phase: from profile and config, capped by the network's cost."""

    train_shots: int
    finetune_shots: int

    @classmethod
    def of(cls, profile: Profile, dsl: PredecoderDSL, flops_per_shot: int) -> TrainingBudget:
        """Compute the budget.

        Args:
            profile: Sets the shots of both phases and the cap on training flops.
            dsl: Sets the share of the fine-tuning shots that is used.
            flops_per_shot: Weighted operations per training shot (`training_flops`).
        """
        affordable = int(profile.train_gflops * 1e9 / max(flops_per_shot, 1))
        if dsl.training.finetune_ratio is not None and dsl.training.finetune_share > 0:
            total = min(affordable, profile.train_shots + profile.finetune_shots)
            train_shots = int(total / (1 + dsl.training.finetune_ratio))
            return cls(train_shots, int((total - train_shots) * dsl.training.finetune_share))
        wanted = int(profile.finetune_shots * dsl.training.finetune_share)
        # Both phases are cut by the same share.
        share = min(1.0, affordable / (profile.train_shots + wanted))
        return cls(int(profile.train_shots * share), int(wanted * share))


@dataclass(frozen=True, eq=False)
class Phase:
    """One phase of a training.

    Attributes:
        name: `training` or `finetuning`.
        sampler: Draws its batches.
        algo: Computes its loss and takes its steps.
        n_shots: Its budget.
        build: Builds the phase in another process.
    """

    name: str
    sampler: Sampler
    algo: GradientAlgo
    n_shots: int
    build: PhaseFactory


@dataclass(frozen=True)
class PhaseFactory:
    """Builds agent, sampler and algorithm of a phase in another process, from plain values.

    No code of a branch is pickled: the process loads the same editable modules and builds from them.
    """

    env: EnvSpec
    dsl: PredecoderDSL
    profile: Profile
    budget: TrainingBudget
    seed: int
    phase: str
    modules_dir: Path | None
    threads: int
    recorded: Path | None

    def __call__(self) -> tuple[PredecoderAgent, Sampler, GradientAlgo]:
        """Build the phase."""
        torch.set_num_threads(self.threads)
        overlay.use_modules_dir(self.modules_dir)
        problem = Problem.from_env(self.env)
        model = compile_predecoder(self.dsl, problem, seed=self.seed)
        agent = build_agent(model, self.dsl, problem)
        plan = phases(problem, self.dsl, self.profile, self.budget, self.seed, self.recorded)
        phase = next(phase for phase in plan if phase.name == self.phase)
        return agent, phase.sampler, phase.algo


def phases(
    problem: Problem,
    dsl: PredecoderDSL,
    profile: Profile,
    budget: TrainingBudget,
    seed: int,
    recorded: Path | None = None,
) -> list[Phase]:
    """Return the phases in order; of a family, its circuits take turns in each of them, with equal weight."""
    plans = [
        _circuit_phases(each, dsl, profile, budget, seed, recorded, _loss_weight(problem, each, dsl))
        for each in member_problems(problem)
    ]
    if len(plans) == 1:
        return plans[0]
    return [
        replace(
            parts[0],
            sampler=FamilySampler([part.sampler for part in parts]),
            algo=FamilyAlgo([part.algo for part in parts]),
            build=replace(parts[0].build, env=problem.env),
        )
        for parts in zip(*plans, strict=True)
    ]


def _loss_weight(target: Problem, problem: Problem, dsl: PredecoderDSL) -> float:
    """Return the factor that gives the loss of a circuit, a sum over its edges, the weight of the target's."""
    return target.variables(dsl.output_mode).n_edges / problem.variables(dsl.output_mode).n_edges


def _circuit_phases(
    problem: Problem,
    dsl: PredecoderDSL,
    profile: Profile,
    budget: TrainingBudget,
    seed: int,
    recorded: Path | None,
    weight: float,
) -> list[Phase]:
    """Return the phases of one circuit.

    The first phase needs the errors behind each shot, so it trains on shots of the model; fine-tuning needs the
    observables alone, so an env of recorded shots fine-tunes on those in `recorded`. Fine-tuning is through the
    matching if `can_finetune`, or by policy gradient if the config has that block.
    """
    training = dsl.training
    shots: dict[str, Any] = {"eval_shots": max(1, int(profile.val_shots * EVAL_SHARE)), "recorded": recorded}
    if training.finetune_shots == "recorded" and recorded is None:
        hint = "remove it, or use an env of code kind `recorded_shots`"
        raise UsageError("the env has no recorded shots", location="training.finetune_shots", hint=hint)
    in_finetuning = _require_finetuning(problem, dsl)
    shots["simulated"] = training.finetune_shots == "simulated"
    gaps = training.replay is not None and training.replay.near_failure > 0

    def phase_factory(name: str) -> PhaseFactory:
        threads = torch.get_num_threads()
        return PhaseFactory(
            problem.env, dsl, profile, budget, seed, name, overlay.current_modules_dir(), threads, recorded
        )

    edge_sampler = EdgeLabelSampler(problem, training.batch_size, seed, gaps=gaps, labels=training.labels, **shots)
    edge_algo = SupervisedEdges(
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        loss=training.loss,
        weight=weight,
        labels=training.labels,
        hidden_detectors=problem.graph.in_sector if in_finetuning else None,
    )
    circuit_phases = [Phase("training", edge_sampler, edge_algo, budget.train_shots, phase_factory("training"))]
    if training.finetune_share == 0:
        return circuit_phases
    gap, learning_rate = training.finetune_gap, training.finetune_learning_rate
    finetuning = partial(Phase, "finetuning", n_shots=budget.finetune_shots, build=phase_factory("finetuning"))
    if training.policy_gradient is not None:
        policy_gradient = plugins.load("autoqec.training_loops", POLICY_GRADIENT)
        circuit_phases.append(finetuning(*policy_gradient(problem, training, seed, **shots)))
    if can_finetune(problem, dsl):
        near_sampler = NearFailureSampler(problem, FINETUNE_BATCH, seed, gap=gap, **shots)
        circuit_phases.append(finetuning(near_sampler, MatchingFinetune(problem, learning_rate=learning_rate)))
    return circuit_phases


def _require_finetuning(problem: Problem, dsl: PredecoderDSL) -> bool:
    """Return whether the network reads the decoded sector in fine-tuning only.

    Raises:
        UsageError: The config relies on fine-tuning, which the problem does not have.
    """
    in_finetuning = dsl.local is not None and dsl.local.inputs == "all_in_finetuning"
    needs_finetuning = in_finetuning or dsl.training.finetune_ratio is not None
    if needs_finetuning and dsl.training.policy_gradient is None and not can_finetune(problem, dsl):
        raise UsageError(
            f"env `{problem.env.name}` has no fine-tuning through the matching",
            location="local.inputs, training.finetune_ratio",
            hint="use `inputs: other_sector`, and leave `finetune_ratio` out",
        )
    return in_finetuning


def can_finetune(problem: Problem, dsl: PredecoderDSL) -> bool:
    """Return whether the predecoder sets edge weights of a matching graph with two separable logical classes."""
    if dsl.output_mode != "soft_priors":
        return False
    try:
        LogicalClassMatcher(problem)
    except UsageError:
        return False
    return True


def train(agent: PredecoderAgent, plan: list[Phase], dsl: PredecoderDSL, logger: TrainLogger, seed: int) -> int:
    """Run the phases through the loop that the config names.

    Returns:
        Shots trained on.

    Raises:
        RoundError: The loss is not finite, or a process of the loop failed.
        UsageError: The machine has no such device, or the loop is not installed.
    """
    trained = 0
    kind = find_loop(dsl.training.loop)
    for phase in plan:
        logger.begin(phase.name)
        loop = kind(
            phase.algo,
            agent,
            phase.sampler,
            phase.n_shots,
            seed,
            log_interval_steps=max(1, phase.n_shots // LOG_LINES),
            logger=logger,
            **kind.options(dsl.training, phase.build),
        )
        loop.train()
        trained += loop.counter.steps
    return trained


class _ElementCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements that operations write; views write none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.elements += out.numel()
        return out


def training_flops(model: nn.Module, n_detectors: int) -> int:
    """Return the weighted operations per shot of a forward and a backward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as matrix, _ElementCounter() as element_counter:
        model(torch.zeros(1, n_detectors))
    forward_cost: int = int(matrix.get_total_flops()) + FLOPS_PER_ELEMENT * element_counter.elements
    return FORWARD_AND_BACKWARD * forward_cost
