"""Batched sum, maximum and softmax over the links of each target."""

from __future__ import annotations

import torch
from torch import Tensor


def degree(dst: Tensor, n: int) -> Tensor:
    """Return float32 [n], the number of links of each target, at least 1."""
    return torch.bincount(dst, minlength=n).clamp(min=1).float()


def scatter_sum(values: Tensor, dst: Tensor, n: int) -> Tensor:
    """Sum [batch, n_links, k] over the links of each target to [batch, n, k]; zero for a target without links."""
    return values.new_zeros(values.shape[0], n, values.shape[2]).index_add(1, dst, values)


def scatter_max(values: Tensor, dst: Tensor, n: int) -> Tensor:
    """Take the maximum of [batch, n_links, k] over the links of each target, [batch, n, k]; zero without links."""
    index = dst[None, :, None].expand_as(values)
    zeros = values.new_zeros(values.shape[0], n, values.shape[2])
    return zeros.scatter_reduce(1, index, values, reduce="amax", include_self=False)


def scatter_softmax(logits: Tensor, dst: Tensor, n: int) -> Tensor:
    """Return [batch, n_links, k], weights that sum to one over the links of each target."""
    top = scatter_max(logits.detach(), dst, n)
    weight = torch.exp(logits - top[:, dst])
    return weight / scatter_sum(weight, dst, n)[:, dst].clamp(min=1e-12)
