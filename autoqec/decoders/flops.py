"""What one shot costs: parameters and floating-point operations, counted while the net runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoqec.decoders.base import Predecoder

ZERO_COST_OPS = {  # moves and makes numbers, computes none
    "aten.view", "aten.t", "aten.transpose", "aten.permute", "aten.expand", "aten.slice", "aten.select",
    "aten.unsqueeze", "aten.squeeze", "aten.detach", "aten.clone", "aten.copy_", "aten.cat", "aten.stack",
    "aten.index", "aten.index_select", "aten.gather", "aten.new_zeros", "aten.zeros", "aten.zeros_like",
    "aten.empty", "aten.arange", "aten.split", "aten.split_with_sizes", "aten.alias", "aten._to_copy",
    "aten._unsafe_view", "aten.reshape", "aten.full", "aten.ones", "aten.bincount", "aten.unbind",
}  # fmt: skip


@dataclass(frozen=True)
class ModelCost:
    """n_params: every stored element, buffers too. flops_per_syndrome: 2 x MAC + elementwise of a shot, no backend."""

    n_params: int
    flops_per_syndrome: int


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Matrix work by torch's own formulas; of any other operation, one for every element that it reads or writes,
    whichever is more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
        self._formulas = FlopCounterMode(display=False, custom_mapping=on_cpu).flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and to keep its compiler away torch would import it, a second and more."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self._formulas.get(func.overloadpacket)
        if formula is None:
            with self:
                out = func.decompose(*args, **kwargs)  # in inference mode a linear layer comes here whole
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        if func.overloadpacket is torch.ops.aten.addmm:
            self.total += _elements(out)  # the bias, which torch's formula leaves out
        elif formula is None and str(func.overloadpacket) not in ZERO_COST_OPS:
            self.total += max(_elements(out), max((_elements(value) for value in args), default=0))
        return out


def _attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *more: Any, **named: Any) -> int:
    """Shapes [..., tokens, width]: queries with keys, weights with values."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _elements(value: Any) -> int:
    if isinstance(value, Tensor):
        return math.prod(value.shape)
    if isinstance(value, list | tuple):
        return sum(_elements(item) for item in value)
    return 0


def count(model: Predecoder, n_detectors: int) -> ModelCost:
    """Count the dearest of a quiet, a busy and a full shot: a net may do more where more was detected."""
    was_training = model.training
    model.eval()
    busy = (torch.arange(n_detectors) % 3 == 0).float()
    try:
        flops = [_shot_flops(model, shot[None]) for shot in (torch.zeros(n_detectors), busy, torch.ones(n_detectors))]
    finally:
        model.train(was_training)
    stored = sum(value.numel() for value in model.state_dict().values())
    return ModelCost(n_params=stored, flops_per_syndrome=max(flops))


def _shot_flops(model: Predecoder, shot: Tensor) -> int:
    with torch.no_grad(), _decomposed_attention(), _FlopCounter() as counter:
        # Detached weights: an output that is a view of a parameter and nothing else may then be written to.
        functional_call(model, model.state_dict(), (shot,))
    return counter.total


@contextmanager
def _decomposed_attention() -> Iterator[None]:
    """Attention, whole transformer layers and LSTMs as the matrix products they are made of: no formula knows the
    single operations that torch has for them on a CPU."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("ignore", message="TF32", category=UserWarning)  # of a GPU that is not asked for
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
