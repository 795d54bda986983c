"""A decoder in a process of its own, with a time limit per block of shots, and in the sandbox if asked."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoqec.errors import UsageError
from autoqec.extensions.board.contracts import STATUSES, BoardDecoder, MeasurementStatus
from autoqec.extensions.board.decoders import find_module
from autoqec.extensions.board.shots import Model
from autoqec.extensions.board.worker import TIMES
from autoqec.qec.external_decoders import DecoderChannel, NoAnswerError, ReportedFailureError, start
from autoqec.qec.sampling import unpack
from autoqec.reporting.text import plain
from autoqec.system import sandbox
from autoqec.system.scratch import scratch


class DecoderFailedError(Exception):
    """A decoder gave no usable answer.

    Attributes:
        status: How it failed.
    """

    def __init__(self, status: MeasurementStatus, message: str) -> None:
        super().__init__(plain(message, 500))
        self.status = status


class DecoderCancelledError(Exception):
    """The decoder was ended by `cancel`."""


@dataclass(frozen=True, eq=False)
class BlockAnswer:
    """Predictions for a block, bool [n, n_observables], and CPU times in seconds; None without a matching graph."""

    predictions: np.ndarray
    cpu_s: float
    reference_cpu_s: float | None


class DecoderProcess:
    """A running decoder.

    Every method raises DecoderFailedError if it raises, ends, hangs or answers nonsense, and DecoderCancelledError
    after `cancel`.
    """

    def __init__(self, channel: DecoderChannel, timeout_s: float) -> None:
        self._channel, self._timeout_s = channel, timeout_s
        self._n_observables = 0
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End the process now, also while another thread waits for its answer."""
        self._cancelled.set()
        self._channel.kill()

    def offered(self, decoder: BoardDecoder) -> list[str | None]:
        """Return the names in the result of the decoder's function; [None] if it returns one decoder."""
        answer = self._ask(_request(decoder, None, None))
        names = json.loads(answer)
        if names is None:
            return [None]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise DecoderFailedError("error", "its process answered without names")  # it runs untrusted code
        return list(names)

    def compile(self, decoder: BoardDecoder, model: Model) -> None:
        """Compile the decoder for a model."""
        self._n_observables = model.L.shape[0]
        self._ask(_request(decoder, str(model.dem), model.matchable), 0)

    def decode(self, detection_events: np.ndarray) -> BlockAnswer:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)]."""
        shape = (len(detection_events), -(-self._n_observables // 8))
        size = TIMES.size + shape[0] * shape[1]
        answer = self._ask(np.ascontiguousarray(detection_events).tobytes(), size)
        cpu_s, reference_cpu_s = TIMES.unpack(answer[: TIMES.size])
        packed = np.frombuffer(answer[TIMES.size :], np.uint8).reshape(shape)
        reference = None if math.isnan(reference_cpu_s) else reference_cpu_s
        if not (math.isfinite(cpu_s) and cpu_s >= 0 and (reference is None or 0 <= reference < math.inf)):
            raise DecoderFailedError("error", "the process reported an impossible CPU time")
        return BlockAnswer(unpack(packed, self._n_observables).astype(bool), cpu_s, reference)

    def _ask(self, payload: bytes, size: int | None = None) -> bytes:
        """Send one request; return its answer, of `size` bytes if given."""
        try:
            return self._channel.ask(payload, size)
        except NoAnswerError as error:
            if self._cancelled.is_set():
                raise DecoderCancelledError from error
            if error.expired:
                raise DecoderFailedError("timeout", f"no answer within {self._timeout_s:g} s") from error
            raise DecoderFailedError("error", str(error)) from error
        except ReportedFailureError as error:
            raise _reported(error.payload) from error


def _reported(answer: bytes) -> DecoderFailedError:
    """Read a failure from the process, which runs untrusted code."""
    try:
        value = json.loads(answer)
        status, message = value["status"], str(value["message"])
    except (ValueError, KeyError, TypeError):
        status, message = "error", "reported a failure without a message"
    return DecoderFailedError(status if status in STATUSES and status != "ok" else "error", message)


def _request(decoder: BoardDecoder, dem: str | None, matchable: bool | None) -> bytes:
    module = find_module(decoder.source)
    value: dict[str, Any] = {
        "source": decoder.source,
        "key": decoder.key,
        "origin": module.origin,
        "locations": module.submodule_search_locations,
        "dem": dem,
        "matchable": matchable,
    }
    return json.dumps(value).encode()


@contextmanager
def decoder_process(decoder: BoardDecoder, timeout_s: float) -> Iterator[DecoderProcess]:
    """Start the process of a decoder for the block; it ends with it.

    Its working directory is the current one, so that it finds files by relative paths; in the sandbox an empty one.

    Args:
        decoder: Whose process; nothing is loaded yet.
        timeout_s: Limit for each answer, in seconds.

    Raises:
        UsageError: The decoder's module is not found, or no sandbox is available although the decoder needs one.
    """
    module = find_module(decoder.source)
    if decoder.sandboxed and sandbox.probe() == "none":
        raise UsageError("no sandbox is available", location=f"decoder {decoder.name}", hint="autoqec doctor")
    with (
        scratch("board") as directory,
        start("autoqec.extensions.board.worker", module, directory, sandboxed=decoder.sandboxed) as process,
    ):
        yield DecoderProcess(DecoderChannel(process, directory, timeout_s), timeout_s)
