"""Other people's decoders in the panel: any `sinter.Decoder`, by the function that lists it, or by a short name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import stim

from autoqec.contracts.env import SINTER_DECODER, EnvSpec
from autoqec.errors import InputError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack


@dataclass(frozen=True)
class Guest:
    """Where a decoder is listed, and how its package is had. whole: it takes mechanisms that are not split by `^`."""

    module: str
    function: str
    decoder: str
    mend: str
    whole: bool = False


GUESTS = {
    # https://github.com/quantumlib/tesseract-decoder
    "tesseract": Guest(
        *("tesseract_decoder", "make_tesseract_sinter_decoders_dict", "tesseract"),
        mend="pip install tesseract-decoder",
        whole=True,
    ),
    # https://github.com/trmue/relay
    "relay_bp": Guest(
        "relay_bp.stim", "sinter_decoders", "relay-bp", mend="pip install 'relay-bp[stim]' (it needs Rust)", whole=True
    ),
}


def guest(name: str) -> Guest | None:
    """The guest that a baseline's name means: a short name, or sinter:<module>:<function>:<decoder>; else None."""
    if match := SINTER_DECODER.match(name):
        mend = f"pip install the package of {match['module']}, or leave the decoder out"
        return Guest(match["module"], match["function"], match["decoder"], mend)
    return GUESTS.get(name)


class SinterDecoder:
    """A guest, compiled for one problem. InputError where it is not installed, or does not take the problem."""

    def __init__(self, problem: Problem, name: str, asked: Guest) -> None:
        self.name = name
        self._n_observables = problem.n_observables
        dem = whole(problem.dem) if asked.whole else problem.dem
        listed = _listed(problem.env, name, asked)
        try:
            self._compiled = listed.compile_decoder_for_dem(dem=dem)
        except Exception as error:  # other people's code may raise anything
            raise InputError(
                f"decoder {name!r} does not take this problem ({type(error).__name__}: {str(error)[:200]})",
                where=f"env `{problem.env.name}`, field `baselines`",
                mend="leave the decoder out",
            ) from error

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        packed = self._compiled.decode_shots_bit_packed(bit_packed_detection_event_data=np.ascontiguousarray(detectors))
        return unpack(np.asarray(packed), self._n_observables).astype(bool)


def require(env: EnvSpec) -> None:
    """InputError, with the command that installs it, where a guest among the env's baselines is not to be had."""
    for name in env.baselines:
        if (asked := guest(name)) is not None:
            _listed(env, name, asked)


def _listed(env: EnvSpec, name: str, asked: Guest) -> Any:
    try:
        return getattr(importlib.import_module(asked.module), asked.function)()[asked.decoder]
    except (ImportError, AttributeError, KeyError) as error:
        raise InputError(
            f"decoder {name!r} is not to be had here ({type(error).__name__}: {error})",
            where=f"env `{env.name}`, field `baselines`",
            mend=asked.mend,
        ) from error


def whole(dem: stim.DetectorErrorModel) -> stim.DetectorErrorModel:
    """The model without `^`: each mechanism as the set of detectors and observables that it flips."""
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
