"""Unrolled belief propagation (sum-product) over all error mechanisms, with learned weights.

The log-odds of an edge are those of the XOR of its error mechanisms. Nachmani, Be'ery, Burshtein 2016 (weights on an
unrolled graph); Liu, Poulin 2019 (quantum codes).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoqec.decoders.base import ProblemView
from autoqec.decoders.modules.scatter import degree, scatter_softmax, scatter_sum

FIXED_DAMPING = 0.25
MAX_LOG_ODDS = 15.0  # nats; tanh saturates beyond


class NeuralBp(nn.Module):
    """Belief propagation with weights per iteration, check or link, and learned damping."""

    index: Tensor
    fault_of: Tensor
    check_of: Tensor
    prior: Tensor
    edge_fault: Tensor
    edge_of: Tensor
    log_odds: Tensor

    def __init__(self, block: dict[str, Any], view: ProblemView) -> None:
        super().__init__()
        index = view.inputs(block["inputs"])
        position = torch.full((view.n_detectors,), -1, dtype=torch.long)
        position[index] = torch.arange(len(index))
        kept = position[view.fault_detectors[1]] >= 0
        fixed = {
            "index": index,
            "fault_of": view.fault_detectors[0][kept],
            "check_of": position[view.fault_detectors[1][kept]],
            "prior": view.fault_log_odds,
            "edge_fault": view.fault_edges[0],
            "edge_of": view.fault_edges[1],
            "log_odds": view.log_odds,
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)
        self.n_edges, self.iterations = view.n_edges, block["iterations"]
        n_links, n_checks = len(self.fault_of), len(index)
        self.per_check = block["weight_sharing"] == "per_check"
        shape = {"none": (self.iterations, n_links), "per_layer": (self.iterations, 1), "per_check": (1, n_checks)}
        self.weight = nn.Parameter(torch.ones(shape[block["weight_sharing"]]))
        self.damping = self._damping(block["damping"])
        self.attention = nn.Parameter(0.1 * torch.randn(block["heads"], 2)) if block["attention_aug"] else None
        self.out = nn.Parameter(torch.zeros(()))  # share of the posterior that enters the output; starts at 0

    def _damping(self, kind: str) -> nn.Parameter | None:
        start = torch.logit(torch.tensor(FIXED_DAMPING))
        if kind == "fixed":
            return None
        return nn.Parameter(start.repeat(1 if kind == "learnable_scalar" else self.iterations))

    def forward(self, detections: Tensor) -> Tensor:
        """Map [batch, n_detectors] to [batch, n_edges]."""
        sign = 1 - 2 * detections[:, self.index]
        prior = -self.prior.expand(len(detections), -1)  # log P(0)/P(1), the sign convention of belief propagation
        into_check = prior[:, self.fault_of]
        into_fault = torch.zeros_like(into_check)
        total = prior
        for step in range(self.iterations):
            incoming = self._apply_weights(check_messages(into_check, sign, self.check_of), step, prior)
            damping = self._damping_factor(step)
            into_fault = damping * into_fault + (1 - damping) * incoming
            total = prior + scatter_sum(into_fault[..., None], self.fault_of, prior.shape[1])[..., 0]
            into_check = (total[:, self.fault_of] - into_fault).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
        flipped = xor_log_odds(-total.clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS), self.edge_fault, self.edge_of, self.n_edges)
        unchanged = xor_log_odds(self.prior[None], self.edge_fault, self.edge_of, self.n_edges)
        return self.out * (flipped - unchanged)

    def _damping_factor(self, step: int) -> Tensor | float:
        if self.damping is None:
            return FIXED_DAMPING
        return torch.sigmoid(self.damping[step if len(self.damping) > 1 else 0])

    def _apply_weights(self, message: Tensor, step: int, prior: Tensor) -> Tensor:
        weight = self.weight[0][self.check_of] if self.per_check else self.weight[step]
        message = message * weight
        if self.attention is None:
            return message
        features = torch.stack([message.abs(), prior[:, self.fault_of]], dim=-1)
        n = prior.shape[1]
        shares = scatter_softmax(features @ self.attention.T, self.fault_of, n).mean(dim=-1)
        return message * shares * degree(self.fault_of, n)[self.fault_of]


def check_messages(into_check: Tensor, sign: Tensor, check_of: Tensor) -> Tensor:
    """Compute the message of each check to each of its error mechanisms, excluding that mechanism's own message.

    Args:
        into_check: [batch, n_links], log-odds into the checks.
        sign: [batch, n_checks], -1 for a detection event, else 1.
        check_of: int64 [n_links].

    Returns:
        [batch, n_links].
    """
    n = sign.shape[1]
    log_tanh = torch.log(torch.tanh(into_check.abs() / 2).clamp(1e-7, 1 - 1e-7))
    negative = (into_check < 0).to(into_check.dtype)
    sums = scatter_sum(torch.stack([log_tanh, negative], dim=-1), check_of, n)[:, check_of]
    rest = torch.exp((sums[..., 0] - log_tanh).clamp(max=-1e-7))
    parity = 1 - 2 * torch.remainder(sums[..., 1] - negative, 2)
    return 2 * torch.atanh(rest.clamp(max=1 - 1e-7)) * parity * sign[:, check_of]


def xor_log_odds(log_odds: Tensor, fault: Tensor, edge: Tensor, n_edges: int) -> Tensor:
    """Compute the log-odds of each edge as the XOR of independent error mechanisms.

    Args:
        log_odds: [batch, n_mechanisms].
        fault: int64 [n], error mechanism of each (error mechanism, edge) pair.
        edge: int64 [n], edge of each pair.
        n_edges: Number of edges.

    Returns:
        [batch, n_edges].
    """
    half = torch.tanh(-log_odds / 2)[:, fault]  # 1 - 2p
    log_size = scatter_sum(torch.log(half.abs().clamp(1e-7, 1 - 1e-7))[..., None], edge, n_edges)[..., 0]
    odd = scatter_sum((half < 0).to(half.dtype)[..., None], edge, n_edges)[..., 0]
    return -2 * torch.atanh(torch.exp(log_size).clamp(max=1 - 1e-7)) * (1 - 2 * torch.remainder(odd, 2))


def build(block: dict[str, Any], head: str, view: ProblemView) -> nn.Module:
    """Build the network of a `neural_bp` block."""
    return NeuralBp(block, view)
