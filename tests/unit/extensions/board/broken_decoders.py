"""Decoders that fail, for `autoqec board add-decoder tests.unit.extensions.board.broken_decoders:decoders`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import sinter
import stim


class Broken(sinter.Decoder):
    """A decoder with one observable that answers with `answer(shots)`."""

    def __init__(self, answer: Callable[[np.ndarray], object]) -> None:
        self._answer = answer

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        return _Compiled(self._answer)


class _Compiled(sinter.CompiledDecoder):
    def __init__(self, answer: Callable[[np.ndarray], object]) -> None:
        self._answer = answer

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> object:
        return self._answer(bit_packed_detection_event_data)


def _raise(shots: np.ndarray) -> object:
    raise RuntimeError("cannot decode\x1b[2J")


def _hang(shots: np.ndarray) -> object:
    time.sleep(3600)
    return None


class _Counter:
    """Predicts no flip at the first call, and flips from then on."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, shots: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.full((len(shots), 1), self.calls > 1, np.uint8)


class _Drifts:
    """Predicts no flip for two blocks of shots, and flips from then on."""

    def __init__(self) -> None:
        self.blocks = 0

    def __call__(self, shots: np.ndarray) -> np.ndarray:
        self.blocks += len(shots) == 1000
        return np.full((len(shots), 1), self.blocks > 2, np.uint8)


class _HangsAtBlock:
    """Predicts no flip for two blocks of shots, and hangs in the third one."""

    def __init__(self) -> None:
        self.blocks = 0

    def __call__(self, shots: np.ndarray) -> object:
        self.blocks += len(shots) == 1000
        return _hang(shots) if self.blocks == 3 else np.zeros((len(shots), 1), np.uint8)


def _write_outside(shots: np.ndarray) -> np.ndarray:
    from pathlib import Path

    Path(__file__).with_name("written_by_a_decoder").write_text("x")
    return np.zeros((len(shots), 1), np.uint8)


def decoders() -> dict[str, sinter.Decoder]:
    return {
        "raises": Broken(_raise),
        "hangs": Broken(_hang),
        "wrong_shape": Broken(lambda shots: np.zeros((len(shots), 2), np.uint8)),
        "wrong_dtype": Broken(lambda shots: np.zeros((len(shots), 1), bool)),
        "no_array": Broken(lambda shots: None),
        "changes": Broken(_Counter()),
        "drifts": Broken(_Drifts()),
        "exits": Broken(lambda shots: __import__("os")._exit(3)),
        "hangs_later": Broken(_HangsAtBlock()),
        "writes": Broken(_write_outside),
        "zero": Broken(lambda shots: np.zeros((len(shots), 1), np.uint8)),
    }


def single() -> sinter.Decoder:
    return decoders()["zero"]
