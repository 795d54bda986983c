"""Predictions of other decoders that were recorded with the shots: checks, and their errors on a span of shots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autoqec.contracts.env import PREDICTED, PREDICTED_DECODER
from autoqec.contracts.recorded import RecordedBlock
from autoqec.errors import UsageError
from autoqec.extensions.recorded.progress import SILENT, Reading
from autoqec.extensions.recorded.shots import CHUNK, RecordedShots
from autoqec.extensions.recorded.split import SKIPPING, Span, read_span
from autoqec.qec.stats import error_mask

HINT = "use predictions of the same shots, or remove the file from the directory of the shots"


def baseline_names(recorded: RecordedShots) -> tuple[str, ...]:
    """Return the names, in an env's `baselines`, of the decoders whose predictions every block has.

    Raises:
        UsageError: A decoder has a name that cannot be in an env.
    """
    names = tuple(f"{PREDICTED}{name}" for name in recorded.layout.predicted_by)
    for name in names:
        if not PREDICTED_DECODER.fullmatch(name):
            decoder = name.removeprefix(PREDICTED)
            raise UsageError(
                f"predictions of {decoder!r}: the name of the decoder is not of 1 to 64 letters, digits and _ . + : -",
                location=str(recorded.directory / recorded.layout.blocks[0].predictions[decoder]),
                hint="rename it, in recorded.yaml or in the directory",
            )
    return names


def check_predictions(
    recorded: RecordedShots, counts: Sequence[int], names: Sequence[str] | None = None, reading: Reading = SILENT
) -> None:
    """Read predictions of other decoders, chunk by chunk, and compare their numbers of shots.

    Args:
        recorded: The shots.
        counts: Shots of each block.
        names: The decoders; None for all that a block names, also where not every block has them.
        reading: Reports the reading.

    Raises:
        UsageError: A file is truncated, compressed, not in its format, or has another number of shots than its block.
    """
    for block, count in zip(recorded.layout.blocks, counts, strict=True):
        for name in block.predictions if names is None else names:
            parts = recorded.predictions(block, name)
            label = f"checking predictions {block.predictions[name]}"
            found = sum(map(len, reading.watch(label, parts, count, len)))
            if found != count:
                raise _other_number(recorded, block, name, found, count)


class PredictedSpan:
    """Errors of recorded predictions on a span of shots, read in order, at most one chunk per decoder at a time."""

    def __init__(
        self,
        recorded: RecordedShots,
        counts: Sequence[int],
        span: Span,
        names: Sequence[str],
        reading: Reading = SILENT,
    ) -> None:
        """Open no file before the first call of `wrong_shots`.

        Args:
            recorded: The shots.
            counts: Shots of each block of files, as in the manifest.
            span: The shots, counted over all files.
            names: The decoders, without `recorded:`.
            reading: Reports the predictions that are skipped.
        """
        self._parts = {name: _span_of(recorded, counts, span, name, reading) for name in names}
        n_observables = recorded.source.num_observables
        self._held = {name: np.empty((0, n_observables), bool) for name in names}

    def wrong_shots(self, observables: np.ndarray) -> dict[str, np.ndarray]:
        """Return which of the next shots each decoder predicts wrongly.

        Args:
            observables: bool [n, n_observables], the recorded flips of the next n shots of the span.

        Returns:
            bool [n], by the name of the baseline.

        Raises:
            UsageError: Predictions are damaged, or have another number of shots than the manifest counts.
        """
        return {
            f"{PREDICTED}{name}": error_mask(self._next(name, len(observables)), observables) for name in self._held
        }

    def _next(self, name: str, n: int) -> np.ndarray:
        held, size = [self._held[name]], len(self._held[name])
        while size < n:
            held.append(next(self._parts[name]))  # the span has as many predictions as shots, or an error was raised
            size += len(held[-1])
        joined = np.concatenate(held)
        self._held[name] = joined[n:]
        return joined[:n]


def without_errors(recorded: RecordedShots, counts: Sequence[int], span: Span, names: Sequence[str]) -> list[str]:
    """Return the decoders that predict every shot of a span correctly; reading ends when each has made an error.

    Args:
        recorded: The shots.
        counts: Shots of each block of files, as in the manifest.
        span: The shots, counted over all files.
        names: The decoders, without `recorded:`.

    Raises:
        UsageError: A file is damaged, or has another number of shots than the manifest counts.
    """
    left, predicted = list(names), PredictedSpan(recorded, counts, span, names)
    for shots in read_span(recorded, counts, span, span[1] - span[0], CHUNK) if left else ():
        wrong = predicted.wrong_shots(shots.observables)
        left = [name for name in left if not wrong[f"{PREDICTED}{name}"].any()]
        if not left:
            break
    return left


def _span_of(
    recorded: RecordedShots, counts: Sequence[int], span: Span, name: str, reading: Reading
) -> Iterator[np.ndarray]:
    """Read the predictions of a span, bool [<= CHUNK, n_observables] each; files that end before it are not opened."""
    start = 0
    for block, count in zip(recorded.layout.blocks, counts, strict=True):
        if start < span[1] and start + count > span[0]:
            position, before = start, max(span[0] - start, 0)
            for part in recorded.predictions(block, name):
                low, high = (min(max(edge - position, 0), len(part)) for edge in (span[0], min(span[1], start + count)))
                position += len(part)
                if low < high:
                    yield part[low:high]
                else:
                    reading.report(SKIPPING, min(position - start, before), before)
            if position != start + count:
                raise _other_number(recorded, block, name, position - start, count)
        start += count


def _other_number(recorded: RecordedShots, block: RecordedBlock, name: str, found: int, count: int) -> UsageError:
    message = f"holds {found} predictions of {name}, but its block has {count} shots"
    return UsageError(message, location=str(recorded.directory / block.predictions[name]), hint=HINT)
