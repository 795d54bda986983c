"""Measurement of cells in SLURM jobs: one job per cell, cells that are ready together as one job array.

An order is written before its jobs are submitted, so that a later call finds jobs that are still at work.
"""

from __future__ import annotations

import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from filelock import FileLock, Timeout

from autoqec.errors import InfrastructureError, UsageError
from autoqec.extensions.board import job
from autoqec.extensions.board.contracts import BoardCircuit, BoardDecoder, BoardMeasurement, BoardOrder
from autoqec.extensions.board.measure import Plan, missing_blocks
from autoqec.extensions.board.results import read_measurements
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.jobs import Polling, WatchedJob, cancel, find_jobs
from autoqec.qec.external_decoders import MEMORY_GB
from autoqec.runner.round_process import last_log_line
from autoqec.store import atomic
from autoqec.store.layout import BoardLayout


def job_options(options: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the `--slurm` options, completed by what a cell may need, so that its own limits apply before them."""
    calls = plan.n_blocks + 3  # the decoder is loaded, and some shots are decoded again before and after the blocks
    return {
        "time": str(math.ceil(calls * plan.timeout_s / 60) + slurm.MARGIN_MIN),
        "cpus": "1",
        "mem": f"{math.ceil(1000 * (MEMORY_GB + slurm.MARGIN_GB))}M",
        **options,
    }


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
        polling: How often jobs are looked at; SLURM is asked about one job at a time.

    Raises:
        UsageError: SLURM rejects the jobs, or another process measures in jobs on this board.
        InfrastructureError: Jobs ended without finishing their cells.
    """
    with _locked(board):
        for path in board.jobs.iterdir():  # logs of withdrawn orders
            if path.is_dir() and not board.job(path.name).order.exists():
                shutil.rmtree(path, ignore_errors=True)
        wait = _Wait(board, polling or Polling(), on_measured)
        earlier = list(job.read_orders(board))
        wait.run(earlier)
        covered = {cell for order in earlier if job.plan_of(order) == plan for cell in order.cells} - set(wait.failures)
        missing = [
            (circuit.name, decoder.name)
            for circuit, decoder in pairs
            if (circuit.name, decoder.name) not in covered and missing_blocks(board, circuit, decoder, plan)
        ]
        wait.failures.clear()
        starts = range(0, len(missing), slurm.MAX_ARRAY)
        wait.run([_submit(board, missing[start : start + slurm.MAX_ARRAY], plan, options) for start in starts])
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
    try:
        with FileLock(board.jobs / "lock", blocking=False):
            yield
    except Timeout as error:
        message = "another process measures in jobs on this board"
        raise UsageError(message, location=str(board.dir), hint="wait for it, or use another --dir") from error


def _submit(board: BoardLayout, cells: Sequence[tuple[str, str]], plan: Plan, options: Mapping[str, str]) -> BoardOrder:
    """Write an order and submit its jobs; a refusal withdraws it."""
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
    layout = board.job(order.name)
    atomic.make_dir(layout.dir)
    atomic.write_json(layout.order, order.dump())
    arguments = [(str(board.dir.resolve()), order.name, index) for index in range(len(cells))]
    try:
        slurm.submit(job.work, arguments, folder=layout.dir, name=order.name, options=options)
    except BaseException:
        layout.order.unlink(missing_ok=True)
        raise
    return order


@dataclass
class _Wait:
    """Waits for the jobs of orders; `failures` says why cells were not finished."""

    board: BoardLayout
    polling: Polling
    on_measured: Callable[[BoardMeasurement], None]
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reported = len(read_measurements(self.board.results))

    def run(self, orders: Sequence[BoardOrder]) -> None:
        """Wait until no job is left; an interrupt cancels them. The orders are withdrawn, the logs stay."""
        try:
            self._wait({(order.name, index): cell for order in orders for index, cell in enumerate(order.cells)})
        except BaseException:
            with suppress(ConnectionError):
                for job_id in [job_id for order in orders for job_id in find_jobs(order.name).values()]:
                    cancel(job_id)
            raise
        finally:
            self._report()
            for order in orders:  # a job that starts later exits at once
                self.board.job(order.name).order.unlink(missing_ok=True)

    def _wait(self, pending: dict[tuple[str, int], tuple[str, str]]) -> None:
        """Wait for cells by order and number."""
        jobs, asked_at = self._jobs([*pending]), float("-inf")
        while pending:
            self._report()
            for (name, index), cell in [*pending.items()]:
                result, watched = job.read_result(self.board, name, index), jobs[name, index]
                if result is None and watched.ended is None:
                    continue
                log = self.board.job(name).dir / f"{watched.job_id}_0_log.out"
                reason = result.error if result is not None else watched.describe_end() + last_log_line(log)
                if reason is not None:
                    self.failures[cell] = reason
                del pending[name, index]
            if pending and time.monotonic() - asked_at >= self.polling.slurm_s:
                asked_at, key = time.monotonic(), next(iter(pending))
                pending[key] = pending.pop(key)  # it is asked last the next time
                jobs[key].ask()
            if pending:
                time.sleep(self.polling.files_s)

    def _jobs(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], WatchedJob]:
        """Find the jobs of orders by name; one that SLURM does not know has ended."""
        found = dict[str, dict[int | None, str]]()
        while missing := {name for name, _ in keys} - set(found):
            try:
                found |= {name: find_jobs(name) for name in missing}
            except ConnectionError:
                time.sleep(self.polling.slurm_s)
        ids = {(name, index): found[name].get(index, found[name].get(None, name)) for name, index in keys}
        return {key: WatchedJob(job_id, self.polling) for key, job_id in ids.items()}

    def _report(self) -> None:
        new = read_measurements(self.board.results)[self._reported :]
        self._reported += len(new)
        for measurement in new:
            self.on_measured(measurement)
