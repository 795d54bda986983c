"""Forward pass of a dense network for one shot, without the overhead of layers that are made for batches."""

from __future__ import annotations

import ctypes
import functools
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
from autoqec.decoders.local_forward import LIBRARY
from autoqec.qec import c_library
from autoqec.qec.c_library import addresses

ACTIVATIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu,
    nn.GELU: F.gelu,
    nn.SiLU: F.silu,
}
Layer = tuple[Tensor, Tensor]  # weight [n_outputs, n_inputs] and bias
PADDING = 64  # widths in C are padded to a multiple: four vectors of the widest instruction set
LINEAR, RELU, RESIDUAL = range(3)  # kinds of layers in C


class _Dense(ctypes.Structure):
    """The struct `Dense` of `dense_network.c`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("width", "outputs", "layers", "row_floats")),
        *((name, ctypes.c_void_p) for name in ("row_of", "columns", "bias", "prior", "shapes", "weights")),
        ("widest", ctypes.c_int32),
    ]


@functools.cache
def compiled_dense() -> Any | None:
    """Return the C function that computes log-odds of one shot, or None if it was not built."""
    if (functions := c_library.functions(LIBRARY, "autoqec_dense_1")) is None:
        return None
    functions[0].argtypes = [ctypes.POINTER(_Dense), ctypes.c_int64, *[ctypes.c_void_p] * 2]
    return functions[0]


class SingleShot:
    """A predecoder of type `mlp` on one shot: the first layer is a sum of columns, those of the fired detectors.

    Networks with ReLU are computed in C, if the extension is built; others by torch. Outputs equal those of the
    predecoder up to the rounding of float32.

    Args:
        model: A predecoder whose body is the `Mlp` of the package, with a head of linear layers.
        head: The layers of the head, with ReLU between them.
        n_detectors: Number of detectors of a shot.
    """

    def __init__(self, model: Predecoder, head: list[Layer], n_detectors: int) -> None:
        body: Any = model.body
        self._body, self._index = body, body.index.numpy()
        self._activation = ACTIVATIONS[type(body.act)]
        self._hidden = [_layer(each) for each in body.hidden]
        self._head = head
        self._width, self._n_detectors = body.first.out_features, n_detectors
        self._bias, self._prior = body.first.bias.detach().numpy(), model.prior.detach().numpy()

    @classmethod
    def of(cls, model: Predecoder, n_detectors: int) -> SingleShot | None:
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
        return cls(model, [_layer(each) for each in linear], n_detectors)

    @cached_property
    def _columns(self) -> np.ndarray:
        """Weights of the first layer and of the linear path, if there is one, by input.

        They are copied at the first shot, since most decoders decode batches only.
        """
        layers = [self._body.first] if self._body.skip is None else [self._body.first, self._body.skip]
        return torch.cat([each.weight.detach().T for each in layers], dim=1).contiguous().numpy()

    def __call__(self, detection_events: np.ndarray) -> np.ndarray:
        """Map bit-packed detection events, uint8 [ceil(n_detectors / 8)], to log-odds, float32 [n_edges].

        Raises:
            ValueError: The array has another shape.
        """
        if detection_events.shape != (-(-self._n_detectors // 8),):  # the C code would read beyond its arrays
            raise ValueError(f"a shot of shape {detection_events.shape}, expected {-(-self._n_detectors // 8)} bytes")
        function = compiled_dense()
        if function is not None and self._activation is torch.relu:
            log_odds, shot = np.empty(len(self._prior), np.float32), np.ascontiguousarray(detection_events, np.uint8)
            if function(self._compiled[0], len(shot), *addresses(shot, log_odds)) == 0:
                return log_odds
        return self._in_torch(detection_events)

    @cached_property
    def _compiled(self) -> tuple[_Dense, dict[str, np.ndarray]]:
        """The struct for C, and the arrays that it points to."""
        layers = [(layer, RESIDUAL) for layer in self._hidden]
        layers += [(layer, RELU) for layer in self._head[:-1]] + [(self._head[-1], LINEAR)]
        parts, shapes = zip(*(_transposed(layer, kind) for layer, kind in layers), strict=True)
        row_of = np.full(8 * -(-self._n_detectors // 8), -1, np.int32)
        row_of[self._index] = np.arange(len(self._index), dtype=np.int32)
        widest = max(self._width, *(shape[1] for shape in shapes)) + PADDING
        columns = self._columns
        arrays: dict[str, np.ndarray] = {
            "row_of": row_of, "columns": columns, "bias": self._bias, "prior": self._prior,
            "shapes": np.array(shapes, np.int32), "weights": np.concatenate([part.ravel() for part in parts]),
        }  # fmt: skip
        network = _Dense(self._width, len(self._prior), len(layers), columns.shape[1], widest=widest)
        for name, address in zip(arrays, addresses(*arrays.values()), strict=True):
            setattr(network, name, address)
        return network, arrays

    def _in_torch(self, detection_events: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(detection_events, count=self._n_detectors, bitorder="little")
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


def _transposed(layer: Layer, kind: int) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Return the weights of a layer as C takes them, and its inputs, padded outputs and kind."""
    weight, bias = layer
    n_outputs, n_inputs = weight.shape
    padded = np.zeros((n_inputs + 1, -(-n_outputs // PADDING) * PADDING), np.float32)
    padded[:-1, :n_outputs], padded[-1, :n_outputs] = weight.numpy().T, bias.numpy()
    return padded, (n_inputs, padded.shape[1], kind)


def _layer(linear: nn.Linear) -> Layer:
    return linear.weight.detach(), linear.bias.detach()
