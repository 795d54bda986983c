"""Cells of a board in SLURM jobs: orders, what a job leaves behind, and `work`, the function that a job calls.

A job appends its measurements to the board's results itself, under the lock of the file, because the process that
submitted it may have ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from autoqec.errors import AutoqecError, UsageError
from autoqec.extensions.board.circuits import load_circuits
from autoqec.extensions.board.contracts import BoardJobResult, BoardOrder
from autoqec.extensions.board.decoders import load_decoders, unavailable
from autoqec.extensions.board.measure import Plan, measure_cells
from autoqec.extensions.slurm.job import is_time_limit
from autoqec.store import atomic
from autoqec.store.layout import BoardLayout
from autoqec.store.round_files import read_contract


def plan_of(order: BoardOrder) -> Plan:
    """Return what the jobs of an order measure of each cell."""
    return Plan(order.shots, order.seed, order.timeout_s, order.again)


def read_orders(board: BoardLayout) -> Iterator[BoardOrder]:
    """Yield the orders whose jobs are not known to have ended.

    Raises:
        ContractError: An order is damaged.
    """
    for path in sorted(board.jobs.glob("*/order.json")):
        order = read_contract(path, BoardOrder)
        if order is not None:
            yield order


def read_result(board: BoardLayout, name: str, index: int) -> BoardJobResult | None:
    """Return how the job of a cell ended; None if it has not."""
    return read_contract(board.job(name).result(index), BoardJobResult)


def work(directory: str, name: str, index: int) -> None:
    """Measure one cell of an order, unless the order was withdrawn.

    Args:
        directory: The board's directory.
        name: Name of the order.
        index: Number of the cell.
    """
    board = BoardLayout(Path(directory))
    order = read_contract(board.job(name).order, BoardOrder)
    if order is None:
        return
    error: str | None = None
    try:
        os.chdir(order.directory)  # where the modules of added decoders are found
        _measure(board, order, index)
    except Exception as failure:
        if is_time_limit(failure):
            error = f"time limit, --slurm time={order.options['time']}, reached"
        elif isinstance(failure, AutoqecError | OSError):
            error = str(failure)
        else:
            raise
    if board.job(name).order.exists():
        atomic.write_json(board.job(name).result(index), BoardJobResult(error=error).dump())


def _measure(board: BoardLayout, order: BoardOrder, index: int) -> None:
    circuit_name, decoder_name = order.cells[index]
    circuit, decoder = load_circuits(board).get(circuit_name), load_decoders(board).get(decoder_name)
    if circuit is None or decoder is None:
        raise UsageError("the board no longer has this circuit or decoder", hint="autoqec board show")
    if (reason := unavailable(decoder)) is not None:
        raise UsageError(f"on the node, {reason[0]}", hint=reason[1])
    measure_cells(board, [(circuit, decoder)], plan_of(order))
