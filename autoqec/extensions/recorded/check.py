"""Checks of recorded shots before use: sizes, detection events and observables of each block, and decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import stim

from autoqec.contracts.recorded import RecordedBlock
from autoqec.extensions.recorded.diagnosis import Diagnosis, diagnose_events
from autoqec.extensions.recorded.observables import diagnose_observables, fits
from autoqec.extensions.recorded.orders import layers
from autoqec.extensions.recorded.progress import SILENT, Reading
from autoqec.extensions.recorded.saved_counts import SavedCounts
from autoqec.extensions.recorded.shots import CHUNK, RecordedShots
from autoqec.extensions.recorded.statistics import EventCounts, count_events
from autoqec.qec import backends, shotfiles
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack

SAMPLE = 16_384  # shots of a block whose observables are compared with predictions
MAX_EXCHANGED = 64  # blocks among which exchanged files are searched


@dataclass(frozen=True, eq=False)
class BlockCheck:
    """What was found in one block.

    Attributes:
        counts: Counts of its detection events, None if it cannot be read as shots of the model.
        sample: Its first shots.
        diagnoses: Ways in which it does not fit the model.
    """

    counts: EventCounts | None
    sample: Shots | None
    diagnoses: tuple[Diagnosis, ...]


def check_blocks(
    recorded: RecordedShots,
    problem: Problem,
    on_block: Callable[[int, BlockCheck], None] = lambda index, block: None,
    limits: Sequence[int | None] | None = None,
    reading: Reading = SILENT,
) -> list[BlockCheck]:
    """Read the shots once, chunk by chunk, and diagnose each block.

    Args:
        recorded: The shots.
        problem: The env with their model.
        on_block: Called after each block.
        limits: Shots to read from the start of each of the first blocks, None for all; later blocks are not opened. By
            default all shots of all blocks are read.
        reading: Reports and resumes the counting of detection events.

    Raises:
        UsageError: A file is truncated, compressed, not in its format, or disagrees with another in its shots.
    """
    decode = backends.make_backend(problem.env.backend, problem).decode
    checks = []
    blocks = recorded.layout.blocks
    for index, (block, limit) in enumerate(zip(blocks, limits or [None] * len(blocks), strict=False)):
        counter = _BlockCounter(recorded, index, limit, reading)
        checks.append(_check_block(recorded, block, problem, decode, counter))
        on_block(index, checks[-1])
    return _name_duplicates(_name_exchanged(checks, decode))


def _check_block(
    recorded: RecordedShots,
    block: RecordedBlock,
    problem: Problem,
    decode: Callable[[np.ndarray], np.ndarray],
    counter: _BlockCounter,
) -> BlockCheck:
    if (wrong_size := diagnose_size(recorded, block, problem)) is not None:
        return BlockCheck(None, None, (wrong_size,))
    counts = counter.count()
    if counts.shots == 0:
        return BlockCheck(counts, None, (Diagnosis("no_shots", "the files hold no shots", "the recording is empty"),))
    first = counter.first
    sample = Shots(*(np.concatenate([getattr(part, name) for part in first]) for name in vars(first[0])))
    found = diagnose_events(problem, counts)
    if not any(diagnosis.error for diagnosis in found):
        found += diagnose_observables(problem, sample, decode)
    if block.measurements is not None and block.detection_events is not None:
        found += _compare_measurements(recorded, block, sample)
    return BlockCheck(counts, sample, tuple(found))


class _BlockCounter:
    """Counts the detection events of one block; continues from the counts that an interrupted command has saved.

    Attributes:
        first: The first shots of the block, at least `SAMPLE` if it has as many.
    """

    def __init__(self, recorded: RecordedShots, index: int, limit: int | None, reading: Reading) -> None:
        self.recorded, self.block = recorded, recorded.layout.blocks[index]
        self.limit, self.reading = limit, reading
        self.first: list[Shots] = []
        self._label = f"checking block {index + 1} of {len(recorded.layout.blocks)}"
        sources = [recorded.directory / name for name in (recorded.layout.model, *self.block.files)]
        self._complete = np.zeros((), bool)
        saved = reading.saved(f"block-{index}", sources, limit=limit, layout=recorded.layout.dump())
        self._saved = SavedCounts(saved, recorded.source.num_detectors, complete=self._complete)

    def count(self) -> EventCounts:
        """Read the block and return its counts; UsageError as `RecordedShots.chunks`."""
        start = self._saved.load()
        complete = bool(self._complete)
        expected = start.shots if complete and start is not None else self.recorded.expected_shots(self.block)
        total = min((shots for shots in (expected, self.limit) if shots is not None), default=None)
        parts = self.reading.watch(self._label, self._events(complete), total, len)
        if complete and start is not None:
            for _ in parts:  # only the first shots
                pass
            return start
        counts = count_events(parts, self.recorded.source.num_detectors, start, self._saved.save_part)
        self._complete[...] = True
        self._saved.save_all(counts)
        return counts

    def _events(self, complete: bool) -> Iterator[np.ndarray]:
        for part in _limited(self.recorded.chunks(self.block), self.limit):
            if sum(map(len, self.first)) < SAMPLE:
                self.first.append(part)
            elif complete:
                return
            yield part.detection_events


def _limited(parts: Iterator[Shots], limit: int | None) -> Iterator[Shots]:
    """Yield the first shots, and read no further chunk after them."""
    for part in parts:
        if limit is None or len(part) < limit:
            yield part
            limit = None if limit is None else limit - len(part)
            continue
        yield Shots(part.detection_events[:limit], part.observables[:limit])
        return


def diagnose_size(recorded: RecordedShots, block: RecordedBlock, problem: Problem) -> Diagnosis | None:
    """Tell from the size of a b8 file how many bits its shots have; None if as many as the model's detectors."""
    if block.detection_events is None or block.observables is None:
        return None
    path = recorded.directory / block.detection_events
    flips = recorded.directory / block.observables
    if shotfiles.guess_format(path) != "b8" or shotfiles.guess_format(flips) not in ("b8", "01"):
        return None
    unit = -(-problem.n_observables // 8)
    if shotfiles.guess_format(flips) == "01":
        unit = problem.n_observables + 1
        with flips.open("rb") as stream:
            if not stream.read(unit).endswith(b"\n"):  # other line ends, or another number of observables
                return None
    shots, rest = divmod(flips.stat().st_size, unit)
    width, uneven = divmod(path.stat().st_size, max(shots, 1))
    if 0 in (shots, width) or rest or uneven or width == -(-problem.n_detectors // 8):
        return None
    with path.open("rb") as stream:  # text has another size than the shots, too
        shotfiles.check_content(path, stream, "b8", problem.n_detectors, "detectors")
    message = (
        f"{path.name} has {width} bytes per shot, {problem.n_detectors} detectors need {-(-problem.n_detectors // 8)}"
    )
    source = recorded.source
    if isinstance(source, stim.Circuit) and width == -(-source.num_measurements // 8):
        cause = "the file holds raw measurements: name it `measurements` in recorded.yaml"
        return Diagnosis("measurements_instead_of_events", message, cause)
    per_round = int(np.bincount(layers(problem)).max())
    for more in range(-problem.rounds, 1000):
        if more and -(-(problem.n_detectors + more * per_round) // 8) == width:
            cause = f"the shots have {abs(more)} rounds {'more' if more > 0 else 'less'} than the circuit"
            return Diagnosis("wrong_rounds", message, cause)
    return Diagnosis("wrong_number_of_detectors", message, "the files belong to another circuit")


def _compare_measurements(recorded: RecordedShots, block: RecordedBlock, sample: Shots) -> list[Diagnosis]:
    """Compare the first detection events with those that the circuit computes from the measurements."""
    converted = next(recorded.converted(block), None)
    n = 0 if converted is None else min(len(converted), len(sample), CHUNK)
    if converted is None or n == 0:
        return []
    events = (converted.detection_events[:n] != sample.detection_events[:n]).any(1).mean()
    flips = (converted.observables[:n] != sample.observables[:n]).any(1).mean()
    if not events and not flips:
        return []
    return [
        Diagnosis(
            "measurements_disagree",
            f"of {n} shots converted from the measurements, {events:.1%} have other detection events than the file and "
            f"{flips:.1%} other observable flips",
            "the files belong to different shots, or the circuit's detectors are defined in another way",
        )
    ]


def _name_exchanged(checks: list[BlockCheck], decode: Callable[[np.ndarray], np.ndarray]) -> list[BlockCheck]:
    """Replace `unrelated_observables` where the observables of another block fit the block's detection events."""
    lost = [
        index for index, check in enumerate(checks) if any(d.name == "unrelated_observables" for d in check.diagnoses)
    ]
    result = list(checks)
    if not 1 < len(lost) <= MAX_EXCHANGED:
        return result
    for index in lost:
        sample = checks[index].sample
        if sample is None:
            continue
        predicted = decode(sample.detection_events)
        for other in lost:
            flips = checks[other].sample
            if other != index and flips is not None and fits(predicted, flips.observables):
                message = f"the observable flips of block {other} fit the detection events of this block"
                diagnosis = Diagnosis("exchanged_files", message, "files of two blocks are exchanged")
                result[index] = BlockCheck(checks[index].counts, sample, (diagnosis,))
    return result


def _name_duplicates(checks: list[BlockCheck]) -> list[BlockCheck]:
    """Add `duplicated_block` to blocks whose first shots equal those of an earlier block."""
    seen: dict[bytes, int] = {}
    result = []
    for index, check in enumerate(checks):
        if check.sample is not None and len(check.sample) >= 64:
            content = check.sample.detection_events.tobytes() + pack(check.sample.observables).tobytes()
            if (first := seen.setdefault(content, index)) != index:
                message = f"its first {len(check.sample)} shots equal those of block {first}"
                diagnosis = Diagnosis("duplicated_block", message, "a file was copied under two names")
                check = BlockCheck(check.counts, check.sample, (*check.diagnoses, diagnosis))
        result.append(check)
    return result


def describe_block(block: RecordedBlock, index: int) -> str:
    """Return the index, the first file and the metadata of a block in one line."""
    details = (block.device, block.time, block.basis and f"basis {block.basis}", block.patch)
    name = Path(block.detection_events or block.measurements or "").name
    return ", ".join([f"block {index} ({name})", *(str(detail) for detail in details if detail)])
