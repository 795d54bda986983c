"""Decodes recorded shots, and scores predictions of other decoders that were recorded with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from autoqec.contracts.env import PREDICTED, PREDICTED_DECODER
from autoqec.errors import UsageError
from autoqec.extensions.recorded.block_comparison import BlockCounts, BlockEffect
from autoqec.extensions.recorded.code import RecordedBlock
from autoqec.extensions.recorded.shots import CHUNK, SILENT, SKIPPING, Progress, RecordedShots, Span
from autoqec.qec.backends import Backend
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
    recorded: RecordedShots, counts: Sequence[int], names: Sequence[str] | None = None, progress: Progress = SILENT
) -> None:
    """Read predictions of other decoders, chunk by chunk, and compare their numbers of shots.

    Args:
        recorded: The shots.
        counts: Shots of each block.
        names: The decoders; None for all that a block names, also where not every block has them.
        progress: Reports the progress.

    Raises:
        UsageError: A file is truncated, compressed, not in its format, or has another number of shots than its block.
    """
    for block, count in zip(recorded.layout.blocks, counts, strict=True):
        for name in block.predictions if names is None else names:
            label = f"checking predictions {block.predictions[name]}"
            found = sum(map(len, progress.watch(label, recorded.predictions(block, name), count, len)))
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
        progress: Progress = SILENT,
    ) -> None:
        """Open no file before the first call of `wrong_shots`.

        Args:
            recorded: The shots.
            counts: Shots of each block of files, as in the manifest.
            span: The shots, counted over all files.
            names: The decoders, without `recorded:`.
            progress: Reports the predictions that are skipped.
        """
        self._parts = {name: _span_of(recorded, counts, span, name, progress) for name in names}
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


def compare(
    recorded: RecordedShots,
    counts: Sequence[int],
    decoders: Mapping[str, Backend],
    span: Span,
    size: int,
    progress: Progress = SILENT,
) -> tuple[dict[str, int], dict[str, BlockEffect]]:
    """Decode recorded shots, and compare all decoders with the first one, block by block.

    Args:
        recorded: The shots.
        counts: Shots of each block of files.
        decoders: Decoders by name. Predictions of other decoders that every block names are scored too.
        span: The shots, counted over all files.
        size: Successive shots per block of the test; a shorter rest at the end is left out.
        progress: Reports the decoding.

    Returns:
        Errors of each decoder, and the gain of each other decoder over the first one.
    """
    others = [name for name in recorded.layout.predicted_by if name not in decoders]
    predicted, reference = PredictedSpan(recorded, counts, span, others, progress), next(iter(decoders))
    compared = {name: BlockCounts(size) for name in (*decoders, *others)}
    parts = recorded.span(counts, span, size, CHUNK, progress)
    for shots in progress.watch("decoding", parts, (span[1] - span[0]) // size * size, len):
        wrong = {
            name: error_mask(decoder.decode(shots.detection_events), shots.observables)
            for name, decoder in decoders.items()
        }
        theirs = predicted.wrong_shots(shots.observables)
        wrong |= {name: theirs[f"{PREDICTED}{name}"] for name in others}
        for name, block_counts in compared.items():
            block_counts.add(wrong[reference], wrong[name])
    errors = {name: block_counts.totals().errors_candidate for name, block_counts in compared.items()}
    return errors, {name: compared[name].effect() for name in compared if name != reference}


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
    for shots in recorded.span(counts, span, span[1] - span[0], CHUNK) if left else ():
        wrong = predicted.wrong_shots(shots.observables)
        left = [name for name in left if not wrong[f"{PREDICTED}{name}"].any()]
        if not left:
            break
    return left


def _span_of(
    recorded: RecordedShots, counts: Sequence[int], span: Span, name: str, progress: Progress
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
                    progress.report(SKIPPING, min(position - start, before), before)
            if position != start + count:
                raise _other_number(recorded, block, name, position - start, count)
        start += count


def _other_number(recorded: RecordedShots, block: RecordedBlock, name: str, found: int, count: int) -> UsageError:
    message = f"holds {found} predictions of {name}, but its block has {count} shots"
    return UsageError(message, location=str(recorded.directory / block.predictions[name]), hint=HINT)
