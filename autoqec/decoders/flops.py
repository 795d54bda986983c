"""Counting parameters and floating-point operations of a predecoder by running it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoqec.decoders.base import Predecoder

ZERO_COST_OPS = {  # move or create numbers without arithmetic
    "aten.view", "aten.t", "aten.transpose", "aten.permute", "aten.expand", "aten.slice", "aten.select",
    "aten.unsqueeze", "aten.squeeze", "aten.detach", "aten.clone", "aten.copy_", "aten.cat", "aten.stack",
    "aten.index", "aten.index_select", "aten.gather", "aten.new_zeros", "aten.zeros", "aten.zeros_like",
    "aten.empty", "aten.arange", "aten.split", "aten.split_with_sizes", "aten.alias", "aten._to_copy",
    "aten._unsafe_view", "aten.reshape", "aten.full", "aten.ones", "aten.bincount", "aten.unbind",
}  # fmt: skip
_BASIC_OPS = set[Any]()  # found to have no decomposition


@dataclass(frozen=True)
class ModelCost:
    """Cost of a predecoder without its inner decoder.

    Attributes:
        n_params: Stored elements, including buffers.
        flops_per_syndrome: Two per multiply-add plus one per element of elementwise operations, for one shot.
    """

    n_params: int
    flops_per_syndrome: int


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix operations by torch's formulas, and others by the elements that they read or write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._formulas = _formulas()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and skipping the compiler would import it, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self._formulas.get(func.overloadpacket)
        if formula is None and func not in _BASIC_OPS:
            with self:
                out = func.decompose(*args, **kwargs)  # in inference mode a linear layer is one operation
            if out is not NotImplemented:
                return out
            _BASIC_OPS.add(func)  # whether there is a decomposition depends on the operation alone
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in _MATRIX_PRODUCTS:
            rows, columns = _MATRIX_PRODUCTS[packet]
            self.total += 2 * math.prod(args[rows].shape) * args[columns].shape[-1]
        elif formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        if packet is torch.ops.aten.addmm:
            self.total += _elements(out)  # the bias, which torch's formula leaves out
        elif formula is None and not _is_free(func):
            self.total += max(_elements(out), max((_elements(value) for value in args), default=0))
        return out


# Positions of the factors. torch's formulas give the same, but look for tensors in nested arguments first.
_MATRIX_PRODUCTS = {torch.ops.aten.mm: (0, 1), torch.ops.aten.addmm: (1, 2), torch.ops.aten.bmm: (0, 1)}


@cache
def _formulas() -> dict[Any, Any]:
    """Return torch's formulas by operation."""
    on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
    return dict(FlopCounterMode(display=False, custom_mapping=on_cpu).flop_registry)


@cache
def _is_free(func: Any) -> bool:
    return str(func.overloadpacket) in ZERO_COST_OPS


def _attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *more: Any, **named: Any) -> int:
    """Count query-key and weight-value products; shapes are [..., tokens, width]."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _elements(value: Any) -> int:
    if isinstance(value, Tensor):
        return math.prod(value.shape)
    if isinstance(value, list | tuple):
        return sum(_elements(item) for item in value)
    return 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: for one shot, threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def count(model: Predecoder, n_detectors: int, *, full_shot_only: bool = False) -> ModelCost:
    """Count the cost of one shot: the maximum over an empty, a dense and a full shot, since cost may depend on events.

    Args:
        model: The predecoder.
        n_detectors: Number of detectors.
        full_shot_only: Count that of a full shot alone, in a third of the time; exact for modules of this package.
    """
    was_training = model.training
    model.eval()
    shots = [torch.ones(n_detectors)]
    if not full_shot_only:
        shots += [torch.zeros(n_detectors), (torch.arange(n_detectors) % 3 == 0).float()]
    try:
        with one_thread():
            flops = [_shot_flops(model, shot[None]) for shot in shots]
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
    """Run attention, transformer layers and LSTMs as separate matrix products: fused operations have no formula."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("ignore", message="TF32", category=UserWarning)  # about a GPU that is not used
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
