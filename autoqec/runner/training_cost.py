"""Deterministic cost of training a network; it caps the number of steps instead of a clock, so that rounds repeat."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

# Fitted on 13 networks (dense and graph, one core, 2 x AVX-512): seconds = 1.1e-11 x (matrix flops + 25 x elements
# written), within a factor 1.8 either way. Backward costs twice forward.
FLOPS_PER_ELEMENT = 25
FORWARD_AND_BACKWARD = 3


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
