"""Measurement of cells in SLURM jobs: one job per cell, cells that are ready together as one job array.

An order is written before its jobs are submitted, so that a later call finds jobs that are still at work.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from autoqec.errors import InfrastructureError, UsageError
from autoqec.extensions.board import job
from autoqec.extensions.board.contracts import BoardCircuit, BoardDecoder, BoardMeasurement, BoardOrder
from autoqec.extensions.board.measure import Plan, missing_blocks
from autoqec.extensions.board.results import read_measurements
from autoqec.extensions.slurm import executor as rounds
from autoqec.extensions.slurm import submission as slurm
from autoqec.installation import IMPORT_DIR
from autoqec.qec.external_decoders import MEMORY_GB
from autoqec.runner.round_process import last_log_line
from autoqec.store import atomic
from autoqec.store.layout import BoardLayout


def job_options(options: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the `--slurm` options, completed by what a cell may need, so that its own limits apply before them."""
    calls = plan.n_blocks + 3  # the decoder is loaded, and some shots are decoded again before and after the blocks
    return {
        "time": str(math.ceil(calls * plan.timeout_s / 60) + rounds.MARGIN_MIN),
        "cpus": "1",
        "mem": f"{math.ceil(1000 * (MEMORY_GB + rounds.MARGIN_GB))}M",
        **options,
    }


@dataclass(frozen=True)
class Polling:
    """How often jobs are looked at, in seconds.

    Attributes:
        files_s: Between two checks for results.
        slurm_s: Between two queries of SLURM, each about one job.
        lag_s: Until files of a job that has ended are visible here.
    """

    files_s: float = rounds.POLL_FILES_S
    slurm_s: float = rounds.POLL_SLURM_S
    lag_s: float = rounds.FILE_LAG_S


def measure_in_jobs(
    board: BoardLayout,
    pairs: Sequence[tuple[BoardCircuit, BoardDecoder]],
    plan: Plan,
    options: Mapping[str, str],
    *,
    on_measured: Callable[[BoardMeasurement], None] = lambda _: None,
    polling: Polling | None = None,
) -> None:
    """Measure cells as `measure_cells` does, each in a SLURM job; jobs that an earlier call left are awaited first.

    Args:
        board: Where results are written; the nodes must see its directory under the same path.
        pairs: The cells.
        plan: Shots, seed and limits.
        options: Options of the jobs, as `job_options` returns them.
        on_measured: Called with each appended measurement.
        polling: How often jobs are looked at.

    Raises:
        UsageError: SLURM rejects the jobs, or another process measures in jobs on this board.
        InfrastructureError: Jobs ended without finishing their cells.
    """
    with _locked(board):
        _remove_logs(board)
        earlier = list(job.read_orders(board))
        wait = _Wait(board, polling or Polling(), on_measured)
        for order in earlier:
            wait.add(order, [None] * len(order.cells))
        wait.run()
        covered = {cell for order in earlier if job.plan_of(order) == plan for cell in order.cells} - set(wait.failures)
        missing = [
            (circuit.name, decoder.name)
            for circuit, decoder in pairs
            if (circuit.name, decoder.name) not in covered and missing_blocks(board, circuit, decoder, plan)
        ]
        wait = _Wait(board, polling or Polling(), on_measured)
        for start in range(0, len(missing), rounds.MAX_ARRAY):
            order = _write_order(board, missing[start : start + rounds.MAX_ARRAY], plan, options)
            wait.add(order, _submit(board, order))
        wait.run()
    if wait.failures:
        texts = [f"{' '.join(cell)}: {reason}" for cell, reason in wait.failures.items()]
        raise InfrastructureError(
            f"{len(texts)} of {len(missing)} jobs did not finish: {'; '.join(texts[:4])}",
            location=str(board.results),
            hint="repeat the command to continue",
        )


@contextmanager
def _locked(board: BoardLayout) -> Iterator[None]:
    """Keep other processes from submitting jobs for this board while the block runs."""
    atomic.make_dir(board.jobs)
    with (board.jobs / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = "another process measures in jobs on this board"
            raise UsageError(message, location=str(board.dir), hint="wait for it, or use another --dir") from error
        yield


def _write_order(
    board: BoardLayout, cells: Sequence[tuple[str, str]], plan: Plan, options: Mapping[str, str]
) -> BoardOrder:
    order = BoardOrder(
        name=f"autoqec-board-{uuid.uuid4().hex[:12]}",
        options=dict(options),
        directory=os.getcwd(),
        cells=tuple(cells),
        shots=plan.shots,
        seed=plan.seed,
        timeout_s=plan.timeout_s,
        again=plan.again,
    )
    path = board.job(order.name).order
    atomic.make_dir(path.parent)
    atomic.write_json(path, order.dump())
    return order


def _submit(board: BoardLayout, order: BoardOrder) -> list[str | None]:
    """Submit the cells of an order; return the ids of their jobs. A refusal withdraws the order."""
    layout = board.job(order.name)
    arguments = [(str(board.dir.resolve()), order.name, index) for index in range(len(order.cells))]
    try:
        return [
            *slurm.submit(
                job.work, arguments, folder=layout.dir, name=order.name, options=order.options, package=IMPORT_DIR
            )
        ]
    except BaseException:
        _withdraw(board, order)
        raise


def _withdraw(board: BoardLayout, order: BoardOrder) -> None:
    """Delete an order, so that a job that starts later exits at once; the logs stay until the next call."""
    board.job(order.name).order.unlink(missing_ok=True)


def _remove_logs(board: BoardLayout) -> None:
    """Remove what is left of withdrawn orders."""
    for path in board.jobs.iterdir():
        if path.is_dir() and not board.job(path.name).order.exists():
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class _Wait:
    """Waits for the jobs of orders; `failures` says why cells were not finished."""

    board: BoardLayout
    polling: Polling
    on_measured: Callable[[BoardMeasurement], None]
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._orders: dict[str, BoardOrder] = {}
        self._pending: dict[tuple[str, int], str | None] = {}  # order and number of the cell -> id of the job
        self._ended: dict[tuple[str, int], tuple[float, str]] = {}  # the same -> since when it has ended, and how
        self._reported = len(read_measurements(self.board.results))

    def add(self, order: BoardOrder, ids: Sequence[str | None]) -> None:
        """Wait for the jobs of an order, too; an id is None if the job is to be found by its name."""
        self._orders[order.name] = order
        self._pending |= {(order.name, index): number for index, number in enumerate(ids)}

    def run(self) -> None:
        """Wait until no job is left; an interrupt cancels them."""
        last_query = float("-inf")
        try:
            while self._pending:
                self._collect()
                if self._pending and time.monotonic() - last_query >= self.polling.slurm_s:
                    self._query_next()
                    last_query = time.monotonic()
                if self._pending:
                    time.sleep(self.polling.files_s)
        except BaseException:
            self._cancel()
            raise
        finally:
            self._report()
            for order in self._orders.values():
                _withdraw(self.board, order)

    def _collect(self) -> None:
        """Remove jobs that have left a result, or ended long enough ago without one."""
        self._report()
        for name, index in list(self._pending):
            result = job.read_result(self.board, name, index)
            since, how = self._ended.get((name, index), (math.inf, ""))
            if result is None and time.monotonic() - since < self.polling.lag_s:
                continue
            reason = how if result is None else result.error
            if reason is not None:
                self.failures[self._orders[name].cells[index]] = reason
            del self._pending[name, index]

    def _report(self) -> None:
        new = read_measurements(self.board.results)[self._reported :]
        self._reported += len(new)
        for measurement in new:
            self.on_measured(measurement)

    def _query_next(self) -> None:
        """Query SLURM about one job that is not known to have ended; it is asked last the next time."""
        key = next((key for key in self._pending if key not in self._ended), None)
        if key is None:
            return
        with suppress(ConnectionError):
            number = self._find(key)
            self._pending[key] = self._pending.pop(key)
            state = slurm.Job("gone") if number is None else slurm.query_job(number)
            if state.life in ("ended", "gone"):
                self._ended[key] = time.monotonic(), self._description(key[0], number, state)

    def _find(self, key: tuple[str, int]) -> str | None:
        """Return the id of a job, by its name if an earlier process submitted it; None if SLURM does not know it."""
        name, index = key
        if self._pending[key] is None:
            self._pending[key] = slurm.find_job(name, index if len(self._orders[name].cells) > 1 else None)
        return self._pending[key]

    def _description(self, name: str, number: str | None, state: slurm.Job) -> str:
        if state.life == "gone":
            return f"SLURM does not know job {number or name}, which left no result"
        log = self.board.job(name).dir / f"{number}_0_log.out"
        return f"SLURM job {number} ended {state.state} ({state.why}){last_log_line(log)}"

    def _cancel(self) -> None:
        for key in self._pending:
            with suppress(ConnectionError):
                number = self._find(key)
                if number is not None:
                    slurm.cancel(number)
