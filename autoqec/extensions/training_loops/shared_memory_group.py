"""A torch.distributed backend over shared memory and pipes, for sandboxes that allow no sockets.

Every collective is an all-gather in chunks: each rank writes its slot, all ranks meet at a barrier, each rank reads
all slots. Sums are taken in the order of ranks, so that every rank computes the same bits.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from autoqec.extensions.training_loops.shared_memory import WAIT_S, SharedArray, TokenPipe

BACKEND = "shared_memory"
SLOT_BYTES = 2**20  # of one rank, at once; a multiple of every dtype's size
REDUCE: tuple[tuple[Any, Callable[[Tensor, Tensor], Tensor]], ...] = (
    (dist.ReduceOp.SUM, torch.add),
    (dist.ReduceOp.PRODUCT, torch.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
)


class Exchange:
    """An all-gather of bytes between a fixed number of processes, each of which got it as an argument of its start.

    Attributes:
        on_wait: Called while this process waits for others; it may raise, as where one of them has died.
    """

    def __init__(self, world_size: int) -> None:
        # Two sets of slots: a rank may be one collective ahead of another that still reads.
        self._slots = [[SharedArray((SLOT_BYTES,), np.uint8) for _ in range(world_size)] for _ in range(2)]
        self._arrivals = [TokenPipe() for _ in range(world_size)]
        self._turn = 0
        self.on_wait: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "on_wait": None}

    def all_gather(self, rank: int, data: np.ndarray) -> list[np.ndarray]:
        """Return the data of all ranks, in their order, as views that are valid until the next call.

        Args:
            rank: This process.
            data: uint8 [n], n <= SLOT_BYTES, the same n on every rank.
        """
        slots = self._slots[self._turn]
        self._turn ^= 1
        slots[rank].array[: len(data)] = data
        self._barrier(rank)
        return [slot.array[: len(data)] for slot in slots]

    def _barrier(self, rank: int) -> None:
        others = [pipe for number, pipe in enumerate(self._arrivals) if number != rank]
        for pipe in others:
            pipe.put()
        for _ in others:
            while self._arrivals[rank].get(None if self.on_wait is None else WAIT_S) is None:
                assert self.on_wait is not None
                self.on_wait()


class _Completed(dist.Work):
    """The handle of a collective that has ended when it is returned."""

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        return True


class SharedMemoryGroup(dist.ProcessGroup):
    """Collectives on CPU tensors through an `Exchange`."""

    def __init__(self, rank: int, world_size: int, exchange: Exchange) -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self._rank, self._exchange = rank, exchange

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Return the backend's name."""
        return BACKEND

    def allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Reduce each tensor over all ranks, in place: sum, product, minimum or maximum."""
        operation = next((function for kind, function in REDUCE if opts.reduceOp == kind), None)
        if operation is None:
            raise NotImplementedError(f"{BACKEND} cannot reduce by {opts.reduceOp}")
        for tensor in tensors:
            flat = tensor.detach().reshape(-1).clone()
            for part, values in self._chunks(flat):
                flat[part] = reduce(operation, values)
            tensor.detach().copy_(flat.view_as(tensor))
        return _Completed()

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Copy the root's tensors to every rank."""
        for tensor in tensors:
            self._copy(tensor, {opts.rootRank: [tensor]})
        return _Completed()

    def allgather(self, output: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Copy every rank's tensor into `output` of every rank."""
        for tensor, targets in zip(tensors, output, strict=True):
            self._copy(tensor, {rank: [target] for rank, target in enumerate(targets)})
        return _Completed()

    def gather(self, output: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Copy every rank's tensor into `output` of the root."""
        for index, tensor in enumerate(tensors):
            targets = output[index] if self._rank == opts.rootRank else []
            self._copy(tensor, {rank: [target] for rank, target in enumerate(targets)})
        return _Completed()

    def barrier(self, opts: Any) -> dist.Work:  # type: ignore[override]
        """Wait until every rank has arrived."""
        self._exchange.all_gather(self._rank, np.empty(0, np.uint8))
        return _Completed()

    def _copy(self, tensor: Tensor, targets: dict[int, list[Tensor]]) -> None:
        """Copy rank r's `tensor` into `targets[r]`."""
        flat = tensor.detach().reshape(-1).clone()
        received = {rank: torch.empty_like(flat) for rank in targets}
        for part, values in self._chunks(flat):
            for rank, whole in received.items():
                whole[part] = values[rank]
        for rank, tensors in targets.items():
            for target in tensors:
                target.detach().copy_(received[rank].view_as(target))

    def _chunks(self, flat: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Exchange a flat tensor; yields each part with every rank's values of it."""
        size = SLOT_BYTES // flat.element_size()
        for start in range(0, len(flat), size):
            part = slice(start, min(start + size, len(flat)))
            data = self._exchange.all_gather(self._rank, flat[part].view(torch.uint8).numpy())
            yield part, [torch.from_numpy(values).view(flat.dtype) for values in data]


def sockets_allowed() -> bool:
    """Return whether this process may open the sockets that gloo needs."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def register(exchange: Exchange) -> None:
    """Make the backend known to torch.distributed under the name BACKEND; its groups use `exchange`."""

    def create(store: Any, rank: int, world_size: int, timeout: timedelta) -> SharedMemoryGroup:
        return SharedMemoryGroup(rank, world_size, exchange)

    if BACKEND.upper() in dist.Backend._plugins:
        del dist.Backend._plugins[BACKEND.upper()]  # of an earlier training in this process
        dist.Backend.backend_list.remove(BACKEND)
        delattr(dist.Backend, BACKEND.upper())
    dist.Backend.register_backend(BACKEND, create, devices=["cpu"])
