"""External decoders (`sinter.Decoder`) among an env's baselines, each run in a sandboxed process."""

from __future__ import annotations

import json
import weakref
from contextlib import ExitStack

import numpy as np
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.qec.decoder_process import DecoderChannel, NoAnswerError, ReportedFailureError, start
from autoqec.qec.decoder_trust import ExternalDecoderSpec, external_decoder, locate
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack
from autoqec.system.scratch import scratch

ANSWER_TIMEOUT_S = 3600.0  # the longest wait for one batch


class ExternalDecoder:
    """An external decoder, compiled for one problem.

    Raises:
        UsageError: The decoder is not trusted, not installed, cannot be loaded, does not take the problem, or fails.
    """

    def __init__(self, problem: Problem, name: str, spec: ExternalDecoderSpec) -> None:
        self.name = name
        self._n_observables = problem.n_observables
        dem = problem.dem if spec.split else without_separators(problem.dem)
        self._process = _DecoderProcess(problem.env, name, spec, dem)

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables]."""
        shape = (len(detection_events), -(-self._n_observables // 8))
        packed = self._process.ask(np.ascontiguousarray(detection_events).tobytes(), shape[0] * shape[1])
        return unpack(np.frombuffer(packed, np.uint8).reshape(shape), self._n_observables).astype(bool)


def require_installed(env: EnvSpec) -> None:
    """Check that each external decoder among the env's baselines can be loaded.

    Raises:
        UsageError: One is not trusted, not installed or cannot be loaded.
    """
    for name in env.baselines:
        if (spec := external_decoder(name)) is not None:
            _DecoderProcess(env, name, spec, None).close()


class _DecoderProcess:
    """A sandboxed process that holds one decoder, compiled for `dem`; None: only found and loaded."""

    def __init__(self, env: EnvSpec, name: str, spec: ExternalDecoderSpec, dem: stim.DetectorErrorModel | None) -> None:
        self._where = f"env `{env.name}`, field `baselines`"
        self._name, self._hint = name, spec.hint
        module = locate(name, spec, location=self._where)
        resources = ExitStack()
        self.close = weakref.finalize(self, resources.close)
        directory = resources.enter_context(scratch("decoder"))
        process = resources.enter_context(start("autoqec.qec.external_process", module, directory))
        self._channel = DecoderChannel(process, directory, ANSWER_TIMEOUT_S)
        request = {
            "module": spec.module,
            "function": spec.function,
            "decoder": spec.decoder,
            "origin": module.origin,
            "locations": module.submodule_search_locations,
            "dem": None if dem is None else str(dem),
        }
        self.ask(json.dumps(request).encode(), 0)

    def ask(self, payload: bytes, size: int) -> bytes:
        """Send one request; return its answer of `size` bytes."""
        try:
            return self._channel.ask(payload, size)
        except NoAnswerError as error:
            raise self._error(str(error)) from error
        except ReportedFailureError as error:
            raise self._error(error.payload.decode(errors="replace")) from error

    def _error(self, what: str) -> UsageError:
        """Build an error from a message of untrusted code, reduced to one line of printable characters."""
        text = "".join(char if char.isprintable() else " " for char in what)[:500]
        return UsageError(f"decoder {self._name!r}: {text}", location=self._where, hint=self._hint)


def without_separators(dem: stim.DetectorErrorModel) -> stim.DetectorErrorModel:
    """Return the model without `^`: each error mechanism as the set of detectors and observables that it flips."""
    out = stim.DetectorErrorModel()
    for instruction in dem.flattened():
        if instruction.type == "error":
            flips: dict[str, stim.DemTarget] = {}
            for target in instruction.targets_copy():
                if not target.is_separator() and flips.pop(str(target), None) is None:
                    flips[str(target)] = target
            instruction = stim.DemInstruction("error", instruction.args_copy(), list(flips.values()))
        out.append(instruction)
    return out
