"""Collectives over shared memory: the same results as gloo's, and usable through torch.distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autoqec.errors import RoundError
from autoqec.extensions.training_loops import shared_memory_group
from autoqec.extensions.training_loops.process_group import Worker, WorkerGroup
from autoqec.extensions.training_loops.shared_memory_group import SLOT_BYTES, Exchange, register
from autoqec.runner import SyncRl, SyncRlEval
from tests.support.loops import Make, difference
from tests.support.progress import progress_rows

from .test_sync import loop_of

WORLD = 3
LARGE = SLOT_BYTES // 4 * 2 + 5  # float32: two full slots and a part


def check_collectives(worker: Worker | None, rank: int, store: str, exchange: Exchange) -> None:
    """Call each collective; a failed assertion ends the process, which the group then names."""
    if worker is not None:
        worker.ready()
    register(exchange)
    dist.init_process_group(
        shared_memory_group.BACKEND, store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD
    )
    try:
        total = torch.arange(LARGE, dtype=torch.float32) * (rank + 1)
        dist.all_reduce(total)
        assert torch.equal(total, torch.arange(LARGE, dtype=torch.float32) * 6)
        largest = torch.tensor([rank, -rank])
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        assert largest.tolist() == [2, 0]
        matrix = torch.full((2, 3), float(rank))[:, ::2]
        dist.broadcast(matrix, src=1)
        assert torch.equal(matrix, torch.ones(2, 2))
        empty = torch.zeros(0)
        dist.broadcast(empty, src=0)
        everyone = [torch.zeros(1, dtype=torch.int64) for _ in range(WORLD)]
        dist.all_gather(everyone, torch.tensor([rank + 10]))
        assert torch.cat(everyone).tolist() == [10, 11, 12]
        parts: list[Any] | None = [None] * WORLD if rank == 0 else None
        dist.gather_object({"rank": rank, "text": "x" * rank}, parts, dst=0)
        assert parts is None or [part["text"] for part in parts] == ["", "x", "xx"]
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_collectives_give_every_rank_the_result(tmp_path: Path) -> None:
    group, exchange = WorkerGroup(), Exchange(WORLD)
    store = str(tmp_path / "store")
    try:
        for rank in range(1, WORLD):
            group.start(f"rank {rank}", check_collectives, rank, store, exchange)
        group.await_ready()
        exchange.on_wait = group.check
        check_collectives(None, 0, store, exchange)
        group.join()
    finally:
        group.close()


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory_group, "sockets_allowed", lambda: False)


def test_training_without_sockets_computes_the_same_weights(layout: Any, tmp_path: Path, no_sockets: None) -> None:
    shared = loop_of(SyncRl, Make("fixed", batch_size=32), layout)
    shared.train()
    assert progress_rows(layout)[-1]["Collectives"] == "shared_memory" and not dist.is_initialized()
    from autoqec.store.layout import RoundLayout

    (tmp_path / "gloo").mkdir()
    gloo_layout = RoundLayout(tmp_path / "gloo", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory_group, "sockets_allowed", lambda: True)
        gloo = loop_of(SyncRl, Make("fixed", batch_size=32), gloo_layout)
        gloo.train()
    assert progress_rows(gloo_layout)[-1]["Collectives"] == "gloo"
    assert difference(shared.agent.state_dict(), gloo.agent.state_dict()) < 1e-6


def test_killed_rank_ends_training_without_sockets(layout: Any, no_sockets: None) -> None:
    loop = loop_of(SyncRlEval, Make("edges", settings={"trouble": "die"}), layout)
    with pytest.raises(RoundError, match=r"rank 1 \(process \d+\) was ended by signal 9"):
        loop.train()
