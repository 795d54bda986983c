"""What one shot costs: parameters and floating-point operations, counted while the net runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoqec.decoders.base import Predecoder

FREE = {  # moves and makes numbers, computes none
    "aten.view", "aten.t", "aten.transpose", "aten.permute", "aten.expand", "aten.slice", "aten.select",
    "aten.unsqueeze", "aten.squeeze", "aten.detach", "aten.clone", "aten.copy_", "aten.cat", "aten.stack",
    "aten.index", "aten.index_select", "aten.gather", "aten.new_zeros", "aten.zeros", "aten.zeros_like",
    "aten.empty", "aten.arange", "aten.split", "aten.split_with_sizes", "aten.alias", "aten._to_copy",
    "aten._unsafe_view", "aten.reshape", "aten.full", "aten.ones", "aten.bincount", "aten.unbind",
}  # fmt: skip
MATRIX = {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution", "aten._scaled_dot_product_attention"}


@dataclass(frozen=True)
class Cost:
    """n_params: every stored element, buffers too. flops_per_syndrome: 2 x MAC + elementwise of a shot, no backend."""

    n_params: int
    flops_per_syndrome: int


class _Elementwise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One operation for every element that an operation reads or writes, whichever is more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        if name == "aten.addmm":
            self.total += _elements(out)  # the fused bias, which torch's counter leaves out
        elif name not in FREE and name not in MATRIX:
            self.total += max(_elements(out), max((_elements(value) for value in args), default=0))
        return out


def _elements(value: Any) -> int:
    if isinstance(value, Tensor):
        return math.prod(value.shape)
    if isinstance(value, list | tuple):
        return sum(_elements(item) for item in value)
    return 0


def count(model: Predecoder, n_detectors: int) -> Cost:
    """Count the dearest of a quiet, a busy and a full shot: a net may do more where more was detected.

    torch's own counter takes the matrix work; the elementwise rest is ours.
    """
    was_training = model.training
    model.eval()
    busy = (torch.arange(n_detectors) % 3 == 0).float()
    try:
        flops = [_shot(model, shot[None]) for shot in (torch.zeros(n_detectors), busy, torch.ones(n_detectors))]
    finally:
        model.train(was_training)
    stored = sum(value.numel() for value in model.state_dict().values())
    return Cost(n_params=stored, flops_per_syndrome=max(flops))


def _shot(model: Predecoder, shot: Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as matrix, _Elementwise() as rest:
        # Detached weights: torch's counter cannot follow an output that is a view of a parameter and nothing else.
        functional_call(model, model.state_dict(), (shot,))
    return int(matrix.get_total_flops()) + rest.total
