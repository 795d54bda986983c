"""Checks recorded shots before use: sizes of files, detection events and observable flips of each block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import stim
from scipy.optimize import linear_sum_assignment

from autoqec.extensions.recorded.code import RecordedBlock
from autoqec.extensions.recorded.shots import CHUNK, SILENT, Progress, RecordedShots, concatenated
from autoqec.qec import backends, shotfiles
from autoqec.qec.diagnosis import Diagnosis, diagnose_events, layers
from autoqec.qec.event_statistics import EventCounts, count_events
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack, unpack

SAMPLE = 16_384  # shots of a block whose observables are compared with predictions
MAX_EXCHANGED = 64  # blocks among which exchanged files are searched
MAX_SHIFT = 64  # shots by which observables may be shifted against detection events
MIN_SIGNIFICANCE = 8.0  # standard errors of the correlation between prediction and flip that the model must reach
LOST, FOUND = 0.35, 0.6  # shares of the model's correlation
FRAME_ERRORS = 5.0  # standard errors by which predictions are wrong rather than right where a detector fired
MAX_FRAME = 8  # detectors in a wrong frame that are named
REFERENCE_SEED = 20_240_501
MIN_EXPECTED_FLIPS = 30.0

Decode = Callable[[np.ndarray], np.ndarray]


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
    limits: Sequence[int | None] | None = None,
    progress: Progress = SILENT,
) -> list[BlockCheck]:
    """Read the shots once, chunk by chunk, and diagnose each block.

    Args:
        recorded: The shots.
        problem: The env with their model.
        limits: Shots to read from the start of each of the first blocks, None for all; later blocks are not opened. By
            default all shots of all blocks are read.
        progress: Reports the reading.

    Raises:
        UsageError: A file is truncated, compressed, not in its format, or disagrees with another in its shots.
    """
    decode = backends.make_backend(problem.env.backend, problem).decode
    checks = [
        _check_block(recorded, index, problem, decode, limit, progress)
        for index, limit in enumerate(limits or [None] * len(recorded.layout.blocks))
    ]
    return _name_duplicates(_name_exchanged(checks, decode))


def _check_block(
    recorded: RecordedShots,
    index: int,
    problem: Problem,
    decode: Decode,
    limit: int | None,
    progress: Progress,
) -> BlockCheck:
    block, first = recorded.layout.blocks[index], list[Shots]()
    if (wrong_size := diagnose_size(recorded, block, problem)) is not None:
        return BlockCheck(None, None, (wrong_size,))

    def events() -> Iterator[np.ndarray]:
        for part in _limited(recorded.chunks(block), limit):
            if sum(map(len, first)) < SAMPLE:
                first.append(part)
            yield part.detection_events

    total = min((shots for shots in (recorded.expected_shots(block), limit) if shots is not None), default=None)
    label = f"checking block {index + 1} of {len(recorded.layout.blocks)}"
    counts = count_events(progress.watch(label, events(), total, len), problem.n_detectors)
    if counts.shots == 0:
        return BlockCheck(counts, None, (Diagnosis("no_shots", "the files hold no shots", "the recording is empty"),))
    sample = concatenated(first)
    found = diagnose_events(problem, counts)
    if not any(diagnosis.error for diagnosis in found):
        found += diagnose_observables(problem, sample, decode)
    if block.measurements is not None and block.detection_events is not None:
        found += _compare_measurements(recorded, block, sample)
    return BlockCheck(counts, sample, tuple(found))


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


def _name_exchanged(checks: list[BlockCheck], decode: Decode) -> list[BlockCheck]:
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


def diagnose_observables(problem: Problem, shots: Shots, decode: Decode) -> list[Diagnosis]:
    """Compare predicted with recorded flips, relative to the same comparison on shots sampled from the model.

    Args:
        problem: The env with the shots' model.
        shots: Recorded shots in their order.
        decode: The inner decoder, detection events to predictions.

    Returns:
        Diagnoses; empty if the flips fit or there are too few shots to tell.
    """
    n = len(shots)
    events, flips, _ = problem.dem.compile_sampler(seed=REFERENCE_SEED).sample(max(n, 1), bit_packed=True)
    expected = unpack(flips, problem.n_observables).astype(bool)
    reference = _correlation(decode(events), expected)
    rates = expected.mean(0)
    constant = (shots.observables.all(0) | ~shots.observables.any(0)) & (rates * n > MIN_EXPECTED_FLIPS)
    if constant.any():
        return [
            Diagnosis(
                "constant_observables",
                f"{_named(constant)} is the same in all {n} shots; the model expects {rates[constant][0]:.1%} flips",
                "the flips were not computed from the final measurements, or the file is a placeholder",
            )
        ]
    predicted = decode(shots.detection_events)
    measured = np.diagonal(_cross_correlation(predicted, shots.observables))
    known = reference * np.sqrt(n) > MIN_SIGNIFICANCE
    inverted = known & (measured < -LOST * reference) | known & _mostly_set(shots.observables, rates)
    if inverted.any():
        return [
            Diagnosis(
                "inverted_observables",
                f"{_named(inverted)}: recorded flips are opposite to the predicted ones (correlation "
                f"{measured[inverted][0]:.2f}, on shots of the model {reference[inverted][0]:.2f})",
                "the file holds final values and not flips relative to the initial state, or 0 and 1 are exchanged",
            )
        ]
    frame = _wrong_frame(problem, shots, predicted, known, reference)
    if frame is not None:
        return [frame]
    unrelated = known & (measured < LOST * reference)
    return [_unrelated(predicted, shots.observables, reference, measured, unrelated)] if unrelated.any() else []


def fits(predicted: np.ndarray, flips: np.ndarray) -> bool:
    """Return whether predictions and flips of equally many shots are clearly correlated."""
    if predicted.shape != flips.shape:
        return False
    return bool(_correlation(predicted, flips).mean() * np.sqrt(len(flips)) > MIN_SIGNIFICANCE)


def _mostly_set(flips: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return bool [n_observables], flips in most shots where the model expects few."""
    return np.asarray((flips.mean(0) > 0.6) & (rates < 0.4))


def _unrelated(
    predicted: np.ndarray, flips: np.ndarray, reference: np.ndarray, measured: np.ndarray, unrelated: np.ndarray
) -> Diagnosis:
    """Name the reason for which predictions and flips are unrelated."""
    goal = FOUND * reference[unrelated].mean()
    if len(reference) > 1:
        cross = _cross_correlation(predicted, flips)
        rows, columns = linear_sum_assignment(-cross)
        if (rows != columns).any() and cross[rows, columns].mean() > FOUND * reference.mean():
            pairs = ", ".join(f"L{row} is in column {column}" for row, column in zip(rows, columns, strict=True))
            return Diagnosis("observables_permuted", f"predicted {pairs}", "the observables are in another order")
    for shift in (*range(1, MAX_SHIFT + 1), *range(-MAX_SHIFT, 0)):
        inner = slice(MAX_SHIFT, len(flips) - MAX_SHIFT)
        if _correlation(predicted[inner], np.roll(flips, shift, 0)[inner])[unrelated].mean() > goal:
            return Diagnosis(
                "observables_shifted",
                f"recorded flips fit the detection events {abs(shift)} shots {'later' if shift > 0 else 'earlier'}",
                "one of the files lacks shots at its start, or has a header",
            )
    if _correlation(predicted, flips[::-1])[unrelated].mean() > goal:
        return Diagnosis("observables_reversed", "recorded flips are in the reverse order of the shots", "sort them")
    return Diagnosis(
        "unrelated_observables",
        f"{_named(unrelated)}: correlation of predicted and recorded flips {measured[unrelated][0]:.2f}, on shots of "
        f"the model {reference[unrelated][0]:.2f}",
        "the observables belong to other shots, to another logical operator, or to a circuit of the other basis",
    )


def _wrong_frame(
    problem: Problem, shots: Shots, predicted: np.ndarray, known: np.ndarray, reference: np.ndarray
) -> Diagnosis | None:
    """Find detectors whose parity must be added to an observable to make it predictable.

    If a detector's parity is part of the recorded flip, predictions are mostly wrong where it fired.
    """
    events = unpack(shots.detection_events, problem.n_detectors).astype(bool)
    fired = events.sum(0)
    for observable in np.nonzero(known)[0]:
        flips = shots.observables[:, observable]
        added: list[int] = []
        while len(added) < MAX_FRAME:
            wrong = predicted[:, observable] ^ flips
            excess = 2 * (events.T.astype(np.float32) @ wrong.astype(np.float32)) - fired
            best = int((excess - FRAME_ERRORS * np.sqrt(fired)).argmax())
            if excess[best] <= FRAME_ERRORS * np.sqrt(fired[best]):
                break
            flips = flips ^ events[:, best]
            added.append(best)
        predictable = _correlation(predicted[:, [observable]], flips[:, None])[0] > FOUND * reference[observable]
        if added and predictable:
            return Diagnosis(
                "wrong_frame",
                f"recorded flips of L{observable} include the parity of {', '.join(f'D{d}' for d in added)}",
                "the logical operator was read along another line than in the circuit, or without the frame updates",
            )
    return None


def _correlation(predicted: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """Return float64 [n_observables], correlations of predicted and recorded flips; 0 for constants."""
    return np.diagonal(_cross_correlation(predicted, flips))


def _cross_correlation(predicted: np.ndarray, flips: np.ndarray) -> np.ndarray:
    a, b = (values - values.mean(0) for values in (predicted.astype(float), flips.astype(float)))
    norm = np.outer(np.sqrt((a**2).sum(0)), np.sqrt((b**2).sum(0)))
    result: np.ndarray = a.T @ b / np.where(norm > 0, norm, np.inf)
    return result


def _named(mask: np.ndarray) -> str:
    return ", ".join(f"L{index}" for index in np.nonzero(mask)[0])
