"""The process of a decoder on the board, in the sandbox on request: `python -m autoqec.extensions.board.worker`.

Messages as in `autoqec.qec.external_process`. The first request is JSON: a decoder and a detector error model, or a
decoder alone to list what it offers. Each further one is bit-packed detection events, uint8 [n, ceil(n_detectors / 8)];
its answer is the CPU time of the decoder and of correlated matching (float64, seconds; NaN without a matching graph)
and bit-packed predictions, uint8 [n, ceil(n_observables / 8)]. With tag `FAILED` an answer is JSON.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from typing import Any

import numpy as np

from autoqec.errors import AutoqecError
from autoqec.qec.external_process import DONE, FAILED, call_function, receive, send
from autoqec.qec.stats import cpu_timed

TIMES = struct.Struct("<dd")


class WrongShapeError(Exception):
    """A decoder returned something else than bit-packed predictions."""


class NoDecoderError(Exception):
    """A function returned something else than sinter decoders."""


def main() -> None:
    """Answer requests from stdin until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the decoder prints goes to the log
    requests = sys.stdin.buffer
    session: _Session | None = None
    while (payload := receive(requests)) is not None:
        try:
            if session is None:
                request = json.loads(payload)
                decoder = _load(request)
                if request["dem"] is None:
                    answer = json.dumps(_names(decoder)).encode()
                else:
                    session, answer = _Session(decoder, request["dem"], request["matchable"]), b""
            else:
                answer = session.decode(payload)
            send(answers, DONE, answer)
        except Exception as error:  # third-party code may raise anything
            status = "wrong_shape" if isinstance(error, WrongShapeError) else "error"
            own = isinstance(error, WrongShapeError | NoDecoderError | AutoqecError)
            message = str(error) if own else f"{type(error).__name__}: {error}"
            send(answers, FAILED, json.dumps({"status": status, "message": message[:500]}).encode())


class _Session:
    """A decoder and correlated matching, compiled for one detector error model."""

    def __init__(self, decoder: Any, text: str, matchable: bool) -> None:
        import stim

        from autoqec.extensions.board.builtin import matching

        dem = stim.DetectorErrorModel(text)
        self._n_detectors, self._n_observables = dem.num_detectors, dem.num_observables
        compiled = decoder.compile_decoder_for_dem(dem=dem)
        self._decode = lambda events: compiled.decode_shots_bit_packed(bit_packed_detection_event_data=events)
        self._reference = matching(dem, correlated=True) if matchable else None
        self._calls = 0

    def decode(self, payload: bytes) -> bytes:
        events = np.frombuffer(payload, np.uint8).reshape(-1, -(-self._n_detectors // 8))
        predictions, seconds, reference_s = self._timed_both(events)
        expected = (len(events), -(-self._n_observables // 8))
        if getattr(predictions, "shape", None) != expected or predictions.dtype != np.uint8:
            found = f"{getattr(predictions, 'dtype', type(predictions).__name__)} {getattr(predictions, 'shape', '')}"
            raise WrongShapeError(f"returned {found.strip()}, expected uint8 {expected}")
        return TIMES.pack(seconds, reference_s) + np.ascontiguousarray(predictions).tobytes()

    def _timed_both(self, events: np.ndarray) -> tuple[Any, float, float]:
        """Decode with both, in alternating order: the first one finds cold caches."""
        self._calls += 1
        if self._reference is None:
            return *cpu_timed(self._decode, events), math.nan
        if self._calls % 2:
            predictions, seconds = cpu_timed(self._decode, events)
            return predictions, seconds, cpu_timed(self._reference, events)[1]
        reference_s = cpu_timed(self._reference, events)[1]
        return *cpu_timed(self._decode, events), reference_s


def _load(request: dict[str, Any]) -> Any:
    """Return the decoder of a request, or with `key` null what its function returns."""
    module_name, _, function = request["source"].partition(":")
    found = call_function(module_name, function, request["origin"], request["locations"])
    key = request["key"]
    if key is not None and not (isinstance(found, dict) and key in found):
        raise NoDecoderError(f"{function}() returned no decoder {key!r}")
    return found if key is None else found[key]


def _names(found: Any) -> list[str] | None:
    """Return the names in what a function returned; None if it is one decoder."""
    if not isinstance(found, dict):
        _check(found, "what it returned is")
        return None
    if not found:
        raise NoDecoderError("returned an empty dict")
    for name, decoder in found.items():
        if not isinstance(name, str):
            raise NoDecoderError(f"returned a decoder under {name!r}, which is not a string")
        _check(decoder, f"{name!r} is")
    return sorted(found)


def _check(decoder: Any, subject: str) -> None:
    if isinstance(decoder, type):
        raise NoDecoderError(f"{subject} the class {decoder.__name__}, not an instance of it")
    if not callable(getattr(decoder, "compile_decoder_for_dem", None)):
        raise NoDecoderError(f"{subject} of type {type(decoder).__name__}, not a sinter.Decoder")


if __name__ == "__main__":
    main()
