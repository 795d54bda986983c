"""Measurement of cells of a board: every decoder on the same shots, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

from autoqec.errors import UsageError
from autoqec.extensions.board import decoders as board_decoders
from autoqec.extensions.board.builtin import matching
from autoqec.extensions.board.circuits import BLOCK_SHOTS, PART_SHOTS, PARTS, Model, load_circuit
from autoqec.extensions.board.contracts import BoardCircuit, BoardDecoder, BoardMeasurement, MeasurementStatus
from autoqec.extensions.board.decoders import DecoderCancelledError, DecoderFailedError, DecoderProcess, decoder_process
from autoqec.extensions.board.results import append_measurement, blocks, read_measurements
from autoqec.installation import PACKAGE_DIR
from autoqec.qec.sampling import Shots, unpack
from autoqec.qec.stats import count_pairs, error_mask
from autoqec.store.layout import BoardLayout
from autoqec.system import git, machine

SAVE_S = 30.0  # seconds between two appended measurements of a long cell
REPEATED_SHOTS = 64  # of the first block, decoded before it and after the last one too
_CODE = ("autoqec", "cli", ":(exclude)autoqec/data")  # results are written while the code stays the same


@dataclass(frozen=True)
class Plan:
    """What to measure of each cell.

    Attributes:
        shots: Shots in total; rounded up to whole blocks, fewer than a block to whole parts of it.
        seed: Seed of the shots.
        timeout_s: Limit for one block of shots, and for loading the decoder.
        again: Measure blocks that the board already has once more.
    """

    shots: int
    seed: int = 0
    timeout_s: float = 600.0
    again: bool = False

    @property
    def block_shots(self) -> int:
        """Shots per block: those of a part of a block if fewer than a block are wanted, as of a slow decoder."""
        return PART_SHOTS if self.shots < BLOCK_SHOTS else BLOCK_SHOTS

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.shots // self.block_shots)


@dataclass(eq=False)
class Reference:
    """Shots and failures of correlated matching of one circuit, shared by the decoders measured on it."""

    model: Model
    _matching: Callable[[np.ndarray], np.ndarray] | None = field(init=False)

    def __post_init__(self) -> None:
        self._matching = matching(self.model.dem, correlated=True) if self.model.matchable else None

    def wrong(self, shots: Shots) -> np.ndarray | None:
        """Return bool [n], shots that correlated matching decodes wrongly; None without a matching graph."""
        if self._matching is None:
            return None
        packed = self._matching(shots.detection_events)
        return error_mask(unpack(packed, self.model.L.shape[0]).astype(bool), shots.observables)


@cache
def commit() -> str | None:
    """Return the commit of the checkout that this package belongs to; None outside one or with uncommitted changes."""
    checkout = PACKAGE_DIR.resolve().parent
    with suppress(UsageError, git.GitError):
        repo = git.Repo.discover(checkout)
        worktree = None if checkout == Path(repo.root).resolve() else checkout
        if "autoqec/installation.py" in repo.tracked_paths() and not repo.dirty_paths(_CODE, worktree=worktree):
            return repo.head_sha(worktree)
    return None


def missing_blocks(board: BoardLayout, circuit: BoardCircuit, decoder: BoardDecoder, plan: Plan) -> list[int]:
    """Return the numbers of the blocks that the board's results do not have; all of them if they are measured again."""
    model = Model.of(load_circuit(circuit, board), location=f"circuit {circuit.name}")
    done = read_measurements(board.results)
    return _missing_blocks(done, decoder.name, board_decoders.version(decoder), model.sha256, plan)


def _missing_blocks(
    done: Iterable[BoardMeasurement], decoder: str, version: str | None, dem_sha256: str, plan: Plan
) -> list[int]:
    known: set[int] = set()
    for item in () if plan.again else done:
        if (item.decoder, item.decoder_version) != (decoder, version):
            continue
        for model, seed, shots, number in blocks(item):
            if (model, seed) == (dem_sha256, plan.seed):
                known.update(_numbers(shots, number, plan.block_shots))
    return [number for number in range(plan.n_blocks) if number not in known]


def _numbers(shots: int, number: int, block_shots: int) -> Iterable[int]:
    """Return the numbers of the blocks of `block_shots` that lie in block `number` of `shots`."""
    if shots == block_shots:
        return (number,)
    return range(number * PARTS, (number + 1) * PARTS) if (shots, block_shots) == (BLOCK_SHOTS, PART_SHOTS) else ()


def measure_cells(
    board: BoardLayout,
    pairs: Sequence[tuple[BoardCircuit, BoardDecoder]],
    plan: Plan,
    *,
    parallel: int = 1,
    on_measured: Callable[[BoardMeasurement], None] = lambda _: None,
) -> None:
    """Measure cells and append the measurements to the board's results; an interrupted call can be repeated.

    Blocks that the results file already has are left out. A failure of a decoder ends its cell and is recorded.

    Args:
        board: Where results are written.
        pairs: The cells.
        plan: Shots, seed and limits.
        parallel: Cells measured at the same time.
        on_measured: Called with each appended measurement.

    Raises:
        UsageError: A circuit is not the pinned one, or a decoder's module is not found.
    """
    done = read_measurements(board.results)
    stop, lock = _Stop(), Lock()

    def save(measurement: BoardMeasurement) -> None:
        with lock:
            append_measurement(board, measurement)
            on_measured(measurement)

    def measure(pair: tuple[BoardCircuit, BoardDecoder]) -> None:
        if not stop.requested:
            _Measurement(board, *pair, plan, save, stop).run(done)

    with ThreadPoolExecutor(parallel) as pool:
        try:
            for future in [pool.submit(measure, pair) for pair in pairs]:
                future.result()
        except BaseException:  # an interrupt too: the blocks so far are saved
            pool.shutdown(wait=False, cancel_futures=True)
            stop.request()
            raise


class _Stop:
    """Ends the decoders of all cells, so that an interrupt does not wait for a block, which may take minutes."""

    def __init__(self) -> None:
        self.requested = False
        self._lock = Lock()
        self._processes: set[DecoderProcess] = set()

    def request(self) -> None:
        """End all decoders, and every one that is added from now on."""
        with self._lock:
            self.requested = True
            for process in self._processes:
                process.cancel()

    @contextmanager
    def added(self, process: DecoderProcess) -> Iterator[None]:
        """Have `request` end the decoder while the block runs."""
        with self._lock:
            if self.requested:
                process.cancel()
            self._processes.add(process)
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)


class _Measurement:
    """The measurement of one cell."""

    def __init__(
        self,
        board: BoardLayout,
        circuit: BoardCircuit,
        decoder: BoardDecoder,
        plan: Plan,
        save: Callable[[BoardMeasurement], None],
        stop: _Stop,
    ) -> None:
        self._circuit, self._decoder, self._plan, self._save, self._stop = circuit, decoder, plan, save, stop
        self._version = board_decoders.version(decoder)
        self._model = Model.of(load_circuit(circuit, board), location=f"circuit {circuit.name}")
        self._reference = Reference(self._model)
        self._first_predictions: np.ndarray | None = None
        self._begin(0)

    def run(self, done: list[BoardMeasurement]) -> None:
        """Measure the blocks that are not in `done`."""
        missing = _missing_blocks(done, self._decoder.name, self._version, self._model.sha256, self._plan)
        if not missing:
            return
        with decoder_process(self._decoder, self._plan.timeout_s) as process, self._stop.added(process):
            try:
                process.compile(self._decoder, self._model)
                for number in missing:
                    self._measure_block(process, number)
                if len(missing) > 1:  # a decoder that learns from shots may change its answers late
                    self._check_repeated(process.decode(self._repeated).predictions, "the first shots", " at the end")
            except DecoderFailedError as failure:
                self._flush(failure.status, str(failure))
                return
            except DecoderCancelledError:  # the block that was being decoded is left out
                pass
        self._flush("ok")

    def _check_repeated(self, predictions: np.ndarray, shots: str, when: str = "") -> None:
        """Compare predictions for the repeated shots with the first ones."""
        assert self._first_predictions is not None
        changed = int((self._first_predictions != predictions).any(axis=1).sum())
        if changed:
            message = f"changed {changed} of {REPEATED_SHOTS} answers when {shots} were decoded again{when}"
            raise DecoderFailedError("inconsistent", message)

    def _measure_block(self, process: DecoderProcess, number: int) -> None:
        sample = self._model.sample if self._plan.block_shots == BLOCK_SHOTS else self._model.sample_part
        shots = sample(self._plan.seed, number)
        is_first = self._first_predictions is None
        if is_first:  # before the block, so that a decoder also loads what it loads at its first call
            self._repeated = shots.detection_events[:REPEATED_SHOTS]
            self._first_predictions = process.decode(self._repeated).predictions
        answer = process.decode(shots.detection_events)
        if is_first:
            self._check_repeated(answer.predictions[:REPEATED_SHOTS], "the same shots")
        if self._failures and (
            number != self._first + len(self._failures) or time.monotonic() - self._started > SAVE_S
        ):
            self._flush("ok")
        if not self._failures:
            self._begin(number)
        wrong = error_mask(answer.predictions, shots.observables)
        self._failures.append(int(wrong.sum()))
        self._cpu_s += answer.cpu_s
        reference = self._reference.wrong(shots)
        if reference is not None:
            pairs = count_pairs(reference, wrong)
            self._fixed.append(pairs.fixed)
            self._broken.append(pairs.broken)
            self._reference_cpu_s += answer.reference_cpu_s or 0.0

    def _begin(self, first_block: int) -> None:
        self._first, self._started = first_block, time.monotonic()
        self._failures: list[int] = []
        self._fixed: list[int] = []
        self._broken: list[int] = []
        self._cpu_s = self._reference_cpu_s = 0.0

    def _flush(self, status: MeasurementStatus, message: str | None = None) -> None:
        """Save the blocks since the last call; nothing if there are none and the decoder did not fail."""
        if not self._failures and status == "ok":
            return
        matchable = self._model.matchable
        self._save(
            BoardMeasurement(
                circuit=self._circuit.name,
                circuit_sha256=self._circuit.sha256,
                dem_sha256=self._model.sha256,
                rounds=self._circuit.rounds,
                decoder=self._decoder.name,
                decoder_source=self._decoder.source,
                decoder_version=self._version,
                sandboxed=self._decoder.sandboxed,
                status=status,
                message=message,
                seed=self._plan.seed,
                first_block=self._first,
                block_shots=self._plan.block_shots,
                failures=tuple(self._failures),
                fixed=tuple(self._fixed) if matchable else None,
                broken=tuple(self._broken) if matchable else None,
                cpu_s=round(self._cpu_s, 6),
                reference_cpu_s=round(self._reference_cpu_s, 6) if matchable else None,
                machine=machine.snapshot()["cpu"]["model"],
                packages=machine.versions(),
                commit=commit(),
                measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
        self._begin(self._first + len(self._failures))
