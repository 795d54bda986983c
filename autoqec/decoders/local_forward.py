"""Forward pass of translation-invariant networks in C: bit-packed shots in, log-odds out.

The arrays describe what `modules.local` computes. A window's first layer is a sum of rows, one per detection event, and
the outputs of windows with up to two events are looked up, see `local_network.c`.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoqec.decoders import overlay
from autoqec.decoders.base import Predecoder
from autoqec.qec import c_library
from autoqec.qec.c_library import addresses

LIBRARY = c_library.library_path(__file__, "_local")
SOURCES = tuple(Path(__file__).with_name(name) for name in ("local_network.c", "local_kernel.c", "dense_network.c"))
LANES = 32  # widths are padded to a multiple: two vectors of the widest instruction set
MAX_ENTRIES = 2**20  # of the table with pairs, 4 MB; a larger one displaces the shots from the cache
SIZES = ("edges", "slots", "width", "layers", "small", "words", "has_pairs")
ARRAYS = (
    "quiet", "rows", "trunk", "heads", "empty", "prior", "edge_of", "kind_of", "class_of", "first_row", "row_of",
    "first_link", "links", "first_entry", "table",
)  # fmt: skip


class _Network(ctypes.Structure):
    """The struct of the same name in `local_network.c`."""

    _fields_ = [*((name, ctypes.c_int32) for name in SIZES), *((name, ctypes.c_void_p) for name in ARRAYS)]


@functools.cache
def compiled_network() -> tuple[Any, Any] | None:
    """Return the C functions that write the table and the log-odds, or None if they were not built."""
    if (functions := c_library.functions(LIBRARY, "autoqec_local_table_1", "autoqec_local_1")) is None:
        return None
    functions[0].argtypes = [ctypes.POINTER(_Network), ctypes.c_int32, ctypes.c_void_p]
    functions[1].argtypes = [ctypes.POINTER(_Network), ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 2]
    return functions[0], functions[1]


def is_outdated() -> bool:
    """Return whether the library of a checkout is older than its sources; False in an installed package."""
    return c_library.is_older(LIBRARY, *SOURCES)


class LocalForward:
    """A predecoder of type `local`; outputs equal those of the predecoder up to the rounding of float32.

    Weights are copied at the first shot.

    Args:
        model: A predecoder whose body is the `Local` of the package, with a head of linear layers.
        n_detectors: Number of detectors of a shot.
    """

    def __init__(self, model: Predecoder, n_detectors: int) -> None:
        self._model, self._n_detectors = model, n_detectors
        self._n_edges = len(model.prior)

    @classmethod
    def of(cls, model: Predecoder, n_detectors: int) -> LocalForward | None:
        """Return the forward pass of a predecoder.

        None if it is of another type, code of a branch defines it, or the C extension is not built.
        """
        packaged = Path(overlay.__file__).parent / "modules"
        if compiled_network() is None or overlay.current_modules_dir() != packaged:
            return None
        body: Any = model.body
        if type(body) is not overlay.architecture_module("local").Local or not body.classes:
            return None
        if not all(_is_known_head(part.head) for part in body.classes.values()):
            return None
        return cls(model, n_detectors)

    @functools.cached_property
    def _network(self) -> tuple[_Network, dict[str, np.ndarray]]:
        """The struct, and the arrays that it points to."""
        functions = compiled_network()
        assert functions is not None
        with torch.no_grad():
            sizes, arrays = network_arrays(self._model, self._n_detectors)
        network = _Network(**sizes, **dict(zip(arrays, addresses(*arrays.values()), strict=True)))
        table = np.empty(int(arrays["first_entry"][-1]), np.float32)
        _check(functions[0](ctypes.byref(network), len(arrays["class_of"]), *addresses(table)))
        empty = self._model.prior.numpy().copy()
        empty[arrays["edge_of"]] += table[arrays["first_entry"][arrays["kind_of"]]]
        arrays |= {"table": table, "empty": empty}
        network.table, network.empty = addresses(table, empty)
        return network, arrays

    def __call__(self, detection_events: np.ndarray) -> np.ndarray:
        """Map bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to log-odds, float32 [n, n_edges].

        Raises:
            ValueError: The array has another shape.
        """
        functions = compiled_network()
        assert functions is not None
        network, _ = self._network
        shots = np.ascontiguousarray(detection_events, np.uint8)
        row_bytes = -(-self._n_detectors // 8)
        if shots.ndim != 2 or shots.shape[1] != row_bytes:  # the C code would read beyond its arrays
            raise ValueError(f"shots of shape {shots.shape}, expected {row_bytes} bytes per shot")
        log_odds = np.empty((len(shots), self._n_edges), np.float32)
        if len(shots):
            _check(functions[1](ctypes.byref(network), *shots.shape, *addresses(shots, log_odds)))
        return log_odds


@dataclass(frozen=True)
class ClassArrays:
    """One class of edges; edges with equal constant inputs are of one kind.

    Attributes:
        edges: int64 [m].
        kind_of: int64 [m], kinds of the class from 0 on.
        quiet: float32 [n_kinds, hidden], first layer without events.
        rows: int64 [n], the window's points at which a detector lies, kind by kind.
        n_points: int64 [n_kinds], their number.
        links: int64 [3, n_links], detector, index of the edge in the class, and place among the kind's points.
    """

    edges: np.ndarray
    kind_of: np.ndarray
    quiet: Tensor
    rows: np.ndarray
    n_points: np.ndarray
    links: np.ndarray


def class_arrays(part: Any, n_detectors: int) -> ClassArrays:
    """Describe an `EdgeClass`."""
    edges, used = part.edges.numpy(), part.used.numpy()
    inputs = np.ascontiguousarray(part.surroundings.numpy())
    row_bytes = np.dtype((np.void, inputs.dtype.itemsize * inputs.shape[1]))
    _, examples, kind_of = np.unique(inputs.view(row_bytes)[:, 0], return_index=True, return_inverse=True)
    detectors = part.columns.numpy().reshape(len(edges), len(used))
    exists = detectors < n_detectors
    place = exists.cumsum(axis=1) - 1
    which, column = np.nonzero(exists)
    links = np.stack([detectors[which, column], which, place[which, column]])
    kinds, point = np.nonzero(exists[examples])
    quiet = part.quiet(part.surroundings[torch.from_numpy(examples)])
    return ClassArrays(edges, kind_of, quiet, used[point], np.bincount(kinds, minlength=len(examples)), links)


def network_arrays(model: Predecoder, n_detectors: int) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Return the sizes and arrays of the struct, without `table` and `empty`."""
    body: Any = model.body
    parts = list(body.classes.values())
    found = [class_arrays(part, n_detectors) for part in parts]
    first_kind = _starts([len(each.n_points) for each in found])
    first_slot = _starts([len(each.edges) for each in found])
    first_row = _starts([len(part.events) for part in parts])
    n_points = np.concatenate([each.n_points for each in found])
    pairs = n_points * (n_points - 1) // 2
    has_pairs = int((1 + n_points + pairs).sum()) <= MAX_ENTRIES
    links = np.concatenate([each.links for each in found], axis=1)
    links[1] += np.repeat(first_slot[:-1], [each.links.shape[1] for each in found])
    links = links[:, np.argsort(links[0], kind="stable")]
    heads = [_head(part.head) for part in parts]
    trunk = [_padded(_layer(layer)) for layer in body.trunk]
    edge_of = np.concatenate([each.edges for each in found])
    arrays = {
        "quiet": _padded(torch.cat([each.quiet for each in found]), rows=False),
        "rows": _padded(torch.cat([part.events for part in parts]), rows=False),
        "trunk": np.concatenate(trunk) if trunk else np.zeros(0, np.float32),
        "heads": np.stack([head for head, _ in heads]),
        "prior": model.prior.numpy()[edge_of],
        "edge_of": edge_of.astype(np.int32),
        "kind_of": _shifted([each.kind_of for each in found], first_kind),
        "class_of": np.repeat(np.arange(len(parts), dtype=np.int32), np.diff(first_kind)),
        "first_row": _starts(n_points),
        "row_of": _shifted([each.rows for each in found], first_row),
        "first_link": np.searchsorted(links[0], np.arange(8 * -(-n_detectors // 8) + 1)).astype(np.int64),
        "links": np.ascontiguousarray(links[1:].T, np.int32),
        "first_entry": _starts(1 + n_points + has_pairs * pairs),
    }
    sizes = {
        "edges": len(model.prior), "slots": len(edge_of), "width": arrays["rows"].shape[1], "layers": len(trunk),
        "small": heads[0][1], "words": max(1, -(-int(n_points.max()) // 64)), "has_pairs": int(has_pairs),
    }  # fmt: skip
    return sizes, arrays


def _shifted(parts: list[np.ndarray], starts: np.ndarray) -> np.ndarray:
    """Return parts one after the other, int32, each increased by its start."""
    return np.concatenate([start + part for start, part in zip(starts, parts, strict=False)]).astype(np.int32)


def _is_known_head(head: nn.Module) -> bool:
    layers = list(head) if isinstance(head, nn.Sequential) else [head]
    return [type(layer) for layer in layers] in ([nn.Linear], [nn.Linear, nn.ReLU, nn.Linear])


def _head(head: Any) -> tuple[np.ndarray, int]:
    """Return the weights of a head and the padded width of its hidden layer, 0 if it has none."""
    if isinstance(head, nn.Linear):
        weights = _padded(head.weight.detach(), rows=False)
        return np.append(weights[0], head.bias.detach().numpy()), 0
    hidden, last = _padded(_layer(head[0])), _padded(head[2].weight.detach(), rows=False)
    return np.concatenate([hidden.ravel(), last[0], head[2].bias.detach().numpy()]), hidden.shape[1]


def _layer(linear: nn.Linear) -> Tensor:
    """Return float32 [n_inputs + 1, n_outputs], the bias last."""
    return torch.cat([linear.weight.detach().T, linear.bias.detach()[None]])


def _padded(values: Tensor, *, rows: bool = True) -> np.ndarray:
    """Return a matrix with columns padded by zeros to a multiple of LANES; with `rows`, rows before the last too."""
    n_rows, n_columns = values.shape
    height = _round_up(n_rows - 1) + 1 if rows else n_rows
    padded = np.zeros((height, _round_up(n_columns)), np.float32)
    padded[: n_rows - rows, :n_columns] = values[: n_rows - rows].numpy()
    if rows:
        padded[-1, :n_columns] = values[-1].numpy()
    return padded


def _round_up(width: int) -> int:
    return -(-width // LANES) * LANES


def _starts(lengths: Any) -> np.ndarray:
    """Return int64 [len(lengths) + 1], where consecutive parts begin and the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _check(status: int) -> None:
    if status != 0:
        raise MemoryError("no memory for the network")
