"""Training algorithms: the loss of a batch and the optimizer step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from autoqec.contracts.dsl import Labels
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import Agent, PredecoderAgent
from autoqec.runner.samples import FieldSelection, Samples

FOCAL_GAMMA = 2.0
POSITIVE_WEIGHT = 2.0
LR_FLOOR = 0.003  # share of the learning rate at the end of the cosine schedule

OptInfo = dict[str, float]


class GradientAlgo(ABC):
    """One optimizer step per batch, in passes of bounded memory; linear warm-up, then a cosine to the last batch.

    Attributes:
        warmup_shots: Length of the warm-up, at most a twentieth of the training.
        samples_to_buffer: Fields of a batch that a replay buffer keeps.
    """

    warmup_shots: int
    samples_to_buffer: FieldSelection

    def __init__(self, *, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    @property
    def sampler_to_buffer(self) -> FieldSelection:
        """`samples_to_buffer` under rlpyt's other name; the copier processes call it.

        They get a copy when they start and do not see later changes of this object.
        """
        return self.samples_to_buffer

    def initialize(self, agent: Agent, *, n_itr: int, batch_size: int) -> None:
        """Create the optimizer; the agent must be on its device already.

        Args:
            agent: What is trained.
            n_itr: Number of batches.
            batch_size: Samples per batch, over all ranks.
        """
        self.agent, self.n_itr, self.batch_size = agent, n_itr, batch_size
        self._warmup = min(self.warmup_shots, 0.05 * n_itr * batch_size)
        self.optimizer = self.make_optimizer()
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]

    def share_optimizer(self, other: GradientAlgo) -> None:
        """Take the steps with the optimizer of another algorithm, whose agent has the same parameters."""
        self.optimizer, self._base_rates = other.optimizer, other._base_rates

    def optimize_agent(self, itr: int, samples: Any) -> OptInfo:
        """Take one optimizer step, unless the loss is not finite.

        Returns:
            `loss` and the algorithm's own figures, averaged over the batch and all ranks.
        """
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
        """Return the factor on the learning rate at batch `itr`."""
        warm = min(1.0, itr * self.batch_size / max(self._warmup, 1.0) + 0.02)
        return warm * (0.5 * (1 + math.cos(math.pi * itr / self.n_itr)) + LR_FLOOR)

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer over the agent's parameters."""

    @abstractmethod
    def loss(self, samples: Any, n: int) -> tuple[Tensor, OptInfo]:
        """Return the share of some samples in the loss and the figures of a batch.

        Args:
            samples: A part of the batch.
            n: Samples in the whole batch; the shares of all parts add up.
        """

    def optim_state_dict(self) -> dict[str, Any]:
        """Return a copy of the optimizer's state on the CPU."""
        state: dict[str, Any] = copy_to_cpu({"optimizer": self.optimizer.state_dict()})
        return state

    def load_optim_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `optim_state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])


class SupervisedEdges(GradientAlgo):
    """Binary cross-entropy over edges, summed over the edges of a shot and averaged over the batch.

    Args:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        loss: Bce; focal: terms weighted by (1 - probability of the label)^2 (https://arxiv.org/abs/1708.02002);
            weighted_bce: flipped edges count twice.
        weight: Factor on the loss.
        labels: Expected: labels are probabilities, and the loss is its mean over labels drawn from them.
        hidden_detectors: Detectors whose events the network does not see.
    """

    agent: PredecoderAgent
    warmup_shots = 50_000

    def __init__(
        self,
        *,
        learning_rate: float,
        weight_decay: float,
        loss: str = "bce",
        weight: float = 1.0,
        labels: Labels = "sampled",
        hidden_detectors: np.ndarray | None = None,
    ) -> None:
        super().__init__(learning_rate=learning_rate)
        self.weight_decay, self.variant, self.weight, self.labels = weight_decay, loss, weight, labels
        self.hidden_detectors = hidden_detectors
        bits = ("detections", "edges") if labels == "sampled" else ("detections",)
        self.samples_to_buffer = FieldSelection(("detections", "edges"), bits=bits)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(
            self.agent.parameters(),
            lr=self.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=self.weight_decay,
            fused=True,
        )

    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        """Return the cross-entropy of the edges; no figures."""
        if samples.edges is None:
            raise ValueError("SupervisedEdges needs samples with `edges`")
        detections = samples.detections
        if self.hidden_detectors is not None:
            detections = detections.copy()
            detections[:, self.hidden_detectors] = 0
        log_odds = self.agent(detections)
        labels = torch.from_numpy(samples.edges).to(log_odds)
        if self.variant == "focal":
            if self.labels == "sampled":
                return self.weight * _focal_terms(log_odds, labels).sum() / n, {}
            zero, one = (_focal_terms(log_odds, torch.full_like(labels, value)) for value in (0.0, 1.0))
            return self.weight * torch.lerp(zero, one, labels).sum() / n, {}
        positive = log_odds.new_tensor(POSITIVE_WEIGHT) if self.variant == "weighted_bce" else None
        loss = F.binary_cross_entropy_with_logits(log_odds, labels, reduction="sum", pos_weight=positive)
        return self.weight * loss / n, {}


def _focal_terms(log_odds: Tensor, labels: Tensor) -> Tensor:
    """Return the focal loss of every edge for labels of 0 and 1."""
    terms = F.binary_cross_entropy_with_logits(log_odds, labels, reduction="none")
    return (1 - torch.exp(-terms)) ** FOCAL_GAMMA * terms


class MatchingFinetune(GradientAlgo):
    """Fine-tuning on the logical error itself.

    Each shot is matched in both logical classes with its own edge weights -z. The difference of the matching weights is
    the logit of "the observable flipped", alpha * sum_e (-z_e)(M0 - M1)_e, scored by binary cross-entropy with the
    matchings M0 and M1 held fixed. alpha > 0 is learned too. Figures: `alpha`, and `wrong`, the share of shots decoded
    wrongly.

    Args:
        problem: Defines the matching graph and its logical classes.
        learning_rate: Peak learning rate of Adam for the network.
    """

    agent: PredecoderAgent
    warmup_shots = 2_000
    samples_to_buffer = FieldSelection(("detections", "observables"), bits=("detections",))
    alpha_learning_rate = 1e-2

    def __init__(self, problem: Problem, *, learning_rate: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self._class_matcher = LogicalClassMatcher(problem)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam over the network and log alpha."""
        self.log_alpha = torch.zeros((), device=self.agent.device, requires_grad=True)
        groups: list[dict[str, Any]] = [
            {"params": list(self.agent.parameters())},
            {"params": [self.log_alpha], "lr": self.alpha_learning_rate},
        ]
        return torch.optim.Adam(groups, lr=self.learning_rate, betas=(0.9, 0.99), fused=True)

    def share_optimizer(self, other: GradientAlgo) -> None:
        """Share alpha, too."""
        assert isinstance(other, MatchingFinetune)
        super().share_optimizer(other)
        self.log_alpha = other.log_alpha

    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        """Return the cross-entropy of the observable; NaN if the network's outputs are not finite."""
        if samples.observables is None:
            raise ValueError("MatchingFinetune needs samples with `observables`")
        log_odds = self.agent(samples.detections)
        detached = log_odds.detach().cpu().numpy()
        if not np.isfinite(detached).all():
            return log_odds.sum() * math.nan, {}
        unflipped, flipped = self._class_matcher.match_both_classes(samples.detections, detached)
        class_difference = torch.from_numpy(unflipped.astype(np.float32) - flipped).to(log_odds)
        logit = -(log_odds * class_difference).sum(1) * self.log_alpha.exp()
        labels = torch.from_numpy(samples.observables[:, 0]).to(log_odds)
        wrong = float(((logit.detach() > 0) != (labels > 0)).sum()) / n
        share = len(samples) / n
        loss = F.binary_cross_entropy_with_logits(logit, labels, reduction="sum") / n
        return loss, {"alpha": self.log_alpha.exp().item() * share, "wrong": wrong}

    def optim_state_dict(self) -> dict[str, Any]:
        """Return a copy of the state of optimizer and alpha on the CPU."""
        return {**super().optim_state_dict(), "log_alpha": self.log_alpha.detach().cpu().clone()}

    def load_optim_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `optim_state_dict` returned."""
        super().load_optim_state_dict(state)
        self.log_alpha.data.copy_(state["log_alpha"])


def copy_to_cpu(value: Any) -> Any:
    """Return a deep copy of nested dicts and lists with every tensor on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: copy_to_cpu(item) for key, item in value.items()}
    return [copy_to_cpu(item) for item in value] if isinstance(value, list) else value
