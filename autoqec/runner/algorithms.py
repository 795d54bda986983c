"""Algorithms: a loss, and the step that follows it."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.replay_buffer import FieldSelection
from autoqec.runner.samplers import Samples

FOCAL_GAMMA = 2.0
POSITIVE_WEIGHT = 2.0
LR_FLOOR = 0.003  # share of the learning rate that the cosine ends at

OptInfo = dict[str, float]


class GradientAlgo(ABC):
    """One optimizer step a batch, over passes of bounded memory; warm-up by shots, then a cosine to the last batch.

    samples_to_buffer: what a replay buffer keeps of a batch; it runs in the copier's process.
    """

    warmup_shots: int
    samples_to_buffer: FieldSelection

    def __init__(self, *, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def initialize(self, agent: PredecoderAgent, *, n_itr: int, batch_size: int, rank: int = 0) -> None:
        """After the agent is on its device. n_itr batches of batch_size shots will come."""
        self.agent, self.n_itr, self.batch_size = agent, n_itr, batch_size
        self._warmup = min(self.warmup_shots, 0.05 * n_itr * batch_size)
        self.optimizer = self.make_optimizer()
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]

    def optimize_agent(self, itr: int, samples: Samples) -> OptInfo:
        """One step. `loss` may come back not finite; the weights are then left as they were."""
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * self.schedule(itr)
        self.optimizer.zero_grad(set_to_none=True)
        total: OptInfo = {}
        for part in self.agent.parts(len(samples)):
            loss, info = self.loss(samples[part], len(samples))
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": loss.item(), **info}.items():
                total[name] = total.get(name, 0.0) + value
        total = self.agent.all_reduce_mean(
            [value for group in self.optimizer.param_groups for value in group["params"]], total
        )
        if math.isfinite(total["loss"]):
            self.optimizer.step()
        return total

    def schedule(self, itr: int) -> float:
        """Factor on the learning rate before batch `itr`."""
        warm = min(1.0, itr * self.batch_size / max(self._warmup, 1.0) + 0.02)
        return warm * (0.5 * (1 + math.cos(math.pi * itr / self.n_itr)) + LR_FLOOR)

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer: ...

    @abstractmethod
    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        """These samples' share of the loss and figures of a batch of n; shares add up."""

    def optim_state_dict(self) -> dict[str, Any]:
        """A copy: later steps leave it alone."""
        return {"optimizer": copy.deepcopy(self.optimizer.state_dict())}

    def load_optim_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


class SupervisedEdges(GradientAlgo):
    """Binary cross-entropy over edges, summed over a shot's edges, averaged over the batch.

    focal: terms weighted by (1 - probability of the truth)^2. weighted_bce: flipped edges count twice.
    """

    warmup_shots = 50_000
    samples_to_buffer = FieldSelection(("detections", "edges"), bits=("detections", "edges"))

    def __init__(self, *, learning_rate: float, weight_decay: float, loss: str = "bce") -> None:
        super().__init__(learning_rate=learning_rate)
        self.weight_decay, self.variant = weight_decay, loss

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.agent.parameters(),
            lr=self.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=self.weight_decay,
            fused=True,
        )

    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        if samples.edges is None:
            raise ValueError("supervised training needs edge labels")
        log_odds = self.agent(samples.detections)
        truth = torch.from_numpy(samples.edges).to(log_odds)
        if self.variant == "focal":
            terms = F.binary_cross_entropy_with_logits(log_odds, truth, reduction="none")
            return ((1 - torch.exp(-terms)) ** FOCAL_GAMMA * terms).sum() / n, {}
        weight = log_odds.new_tensor(POSITIVE_WEIGHT) if self.variant == "weighted_bce" else None
        return F.binary_cross_entropy_with_logits(log_odds, truth, reduction="sum", pos_weight=weight) / n, {}


class MatchingFinetune(GradientAlgo):
    """Fine-tuning on what the decoder is judged by.

    Each shot is matched under both logical classes with its own weights -z; the weights' difference is the logit of
    "observable flipped", alpha * sum_e (-z_e)(M0 - M1)_e, scored by binary cross-entropy against the truth with the
    matchings M0, M1 held fixed. alpha > 0 is learned beside the net. Figures: alpha, and the share decoded wrongly.
    """

    warmup_shots = 2_000
    samples_to_buffer = FieldSelection(("detections", "observables"), bits=("detections",))
    alpha_learning_rate = 1e-2

    def __init__(self, problem: Problem, *, learning_rate: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self._class_matcher = LogicalClassMatcher(problem)

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.log_alpha = torch.zeros((), device=self.agent.device, requires_grad=True)
        groups: list[dict[str, Any]] = [
            {"params": list(self.agent.parameters())},
            {"params": [self.log_alpha], "lr": self.alpha_learning_rate},
        ]
        return torch.optim.Adam(groups, lr=self.learning_rate, betas=(0.9, 0.99), fused=True)

    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        if samples.observables is None:
            raise ValueError("fine-tuning needs to know which observables flipped")
        log_odds = self.agent(samples.detections)
        detached = log_odds.detach().cpu().numpy()
        if not np.isfinite(detached).all():
            return log_odds.sum() * math.nan, {}
        unflipped, flipped = self._class_matcher.match_both_classes(samples.detections, detached)
        class_difference = torch.from_numpy(unflipped.astype(np.float32) - flipped).to(log_odds)
        logit = -(log_odds * class_difference).sum(1) * self.log_alpha.exp()
        truth = torch.from_numpy(samples.observables[:, 0]).to(log_odds)
        wrong = float(((logit.detach() > 0) != (truth > 0)).sum()) / n
        share = len(samples) / n
        loss = F.binary_cross_entropy_with_logits(logit, truth, reduction="sum") / n
        return loss, {"alpha": self.log_alpha.exp().item() * share, "wrong": wrong}

    def optim_state_dict(self) -> dict[str, Any]:
        return {**super().optim_state_dict(), "log_alpha": self.log_alpha.detach().clone()}

    def load_optim_state_dict(self, state: dict[str, Any]) -> None:
        super().load_optim_state_dict(state)
        self.log_alpha.data.copy_(state["log_alpha"])
