"""Sums, maxima and softmaxes over the links that end at one target: batched, without a loop over targets."""

from __future__ import annotations

import torch
from torch import Tensor


def degree(dst: Tensor, n: int) -> Tensor:
    """float32 [n]: links that end at each target, at least 1."""
    return torch.bincount(dst, minlength=n).clamp(min=1).float()


def scatter_sum(values: Tensor, dst: Tensor, n: int) -> Tensor:
    """[batch, n_links, k] -> [batch, n, k]; a target without links hears zero."""
    return values.new_zeros(values.shape[0], n, values.shape[2]).index_add(1, dst, values)


def scatter_max(values: Tensor, dst: Tensor, n: int) -> Tensor:
    """[batch, n_links, k] -> [batch, n, k]; a target without links hears zero."""
    index = dst[None, :, None].expand_as(values)
    zeros = values.new_zeros(values.shape[0], n, values.shape[2])
    return zeros.scatter_reduce(1, index, values, reduce="amax", include_self=False)


def scatter_softmax(logits: Tensor, dst: Tensor, n: int) -> Tensor:
    """[batch, n_links, k]: shares that sum to one over the links of each target."""
    top = scatter_max(logits.detach(), dst, n)
    weight = torch.exp(logits - top[:, dst])
    return weight / scatter_sum(weight, dst, n)[:, dst].clamp(min=1e-12)
