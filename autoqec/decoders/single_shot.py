"""Forward pass of a dense network for one shot, without the overhead of layers that are made for batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoqec.decoders import overlay
from autoqec.decoders.base import Predecoder

ACTIVATIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu,
    nn.GELU: F.gelu,
    nn.SiLU: F.silu,
}
Layer = tuple[Tensor, Tensor]  # weight [n_outputs, n_inputs] and bias


class SingleShot:
    """A predecoder of type `mlp` on one shot: the first layer is a sum of columns, those of the fired detectors.

    Outputs equal those of the predecoder up to the rounding of float32.

    Args:
        model: A predecoder whose body is the `Mlp` of the package, with a head of linear layers.
        head: The layers of the head, with ReLU between them.
    """

    def __init__(self, model: Predecoder, head: list[Layer]) -> None:
        body: Any = model.body
        self._body, self._index = body, body.index.numpy()
        self._activation = ACTIVATIONS[type(body.act)]
        self._hidden = [_layer(each) for each in body.hidden]
        self._head = head
        self._width = body.first.out_features
        self._bias, self._prior = body.first.bias.detach().numpy(), model.prior.detach().numpy()

    @classmethod
    def of(cls, model: Predecoder) -> SingleShot | None:
        """Return the forward pass of a predecoder; None if it is of another type or code of a branch defines it."""
        packaged = Path(overlay.__file__).parent / "modules"
        if overlay.current_modules_dir() != packaged:
            return None
        if not isinstance(model.body, overlay.architecture_module("mlp").Mlp):
            return None
        body: Any = model.body
        parts = list(body.head) if isinstance(body.head, nn.Sequential) else [body.head]
        linear = [each for each in parts if type(each) is nn.Linear]
        if len(linear) + sum(type(each) is nn.ReLU for each in parts) < len(parts):
            return None  # a custom head
        return cls(model, [_layer(each) for each in linear])

    @cached_property
    def _columns(self) -> np.ndarray:
        """Weights of the first layer and of the linear path, if there is one, by input.

        They are copied at the first shot, since most decoders decode batches only.
        """
        layers = [self._body.first] if self._body.skip is None else [self._body.first, self._body.skip]
        return torch.cat([each.weight.detach().T for each in layers], dim=1).contiguous().numpy()

    def __call__(self, detection_events: np.ndarray, n_detectors: int) -> np.ndarray:
        """Map bit-packed detection events, uint8 [ceil(n_detectors / 8)], to log-odds, float32 [n_edges]."""
        bits = np.unpackbits(detection_events, count=n_detectors, bitorder="little")
        sums: np.ndarray = self._columns[bits[self._index].nonzero()[0]].sum(axis=0)
        first, linear_path = sums[: self._width], sums[self._width :]
        first += self._bias
        hidden = self._activation(torch.from_numpy(first))
        for weight, bias in self._hidden:
            hidden = hidden + self._activation(torch.addmv(bias, weight, hidden))
        for weight, bias in self._head[:-1]:
            hidden = torch.relu(torch.addmv(bias, weight, hidden))
        weight, bias = self._head[-1]
        output: np.ndarray = torch.addmv(bias, weight, hidden).numpy()
        output += linear_path + self._prior if len(linear_path) else self._prior
        return output


def _layer(linear: nn.Linear) -> Layer:
    return linear.weight.detach(), linear.bias.detach()
