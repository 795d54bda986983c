"""Errors of a model block by block: the errors of the unrolled model, in its order."""

from __future__ import annotations

import numpy as np
import pytest
import stim

from autoqec.qec import error_stream
from autoqec.qec.error_stream import SEPARATOR, Errors, ErrorStream, concatenate
from autoqec.qec.problem import error_model
from tests.support.envs import surface

NESTED = """
error(0.1) D0 D1 ^ D1 L2
shift_detectors(0, 1) 2
repeat 3 {
    error(0.2) D0
    repeat 2 {
        error(0.3) D1 L0
        shift_detectors(0, 0, 1) 4
        error(0.4) D0
    }
    shift_detectors 1
}
error(0.5)
error(0.1) D5
detector(1, 2) D7
"""


def listed(dem: stim.DetectorErrorModel) -> list[tuple[float, list[int]]]:
    """Return probability and targets of every error of the unrolled model that has targets."""
    found = []
    for each in dem.flattened():
        if each.type == "error" and each.targets_copy():
            values = [
                target.val if target.is_relative_detector_id() else -1 if target.is_separator() else -2 - target.val
                for target in each.targets_copy()
            ]
            found.append((each.args_copy()[0], values))
    return found


def streamed(blocks: list[Errors]) -> list[tuple[float, list[int]]]:
    errors = concatenate([Errors.none(), *blocks])
    parts = np.split(errors.targets, np.cumsum(errors.lengths)[:-1])
    return list(zip(errors.probabilities.tolist(), [part.tolist() for part in parts], strict=True))


@pytest.mark.parametrize("max_block", [1, 7, 4096])
def test_blocks_hold_the_errors_of_the_unrolled_model(max_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_stream, "MAX_BLOCK", max_block)
    circuit = stim.Circuit.generated(
        "surface_code:rotated_memory_z", distance=3, rounds=25, after_clifford_depolarization=0.01
    )
    for dem in (stim.DetectorErrorModel(NESTED), error_model(circuit, surface(3))):
        stream = ErrorStream(dem)
        blocks = list(stream)
        assert streamed(blocks) == listed(dem) and all(1 <= len(block) <= max_block for block in blocks)
        assert streamed(list(stream)) == listed(dem)


def test_loops_are_not_unrolled_in_memory() -> None:
    stream = iter(ErrorStream(stim.DetectorErrorModel("repeat 1000000000000 {\nerror(0.1) D0\nshift_detectors 1\n}")))
    assert [next(stream).targets.tolist() for _ in range(3)] == [[0], [1], [2]]


def test_reach_covers_first_and_last_round() -> None:
    dem = stim.DetectorErrorModel("error(0.1) D0 D3 ^ D1\nerror(0.1) L0\nerror(0.1) D2")
    (errors,) = ErrorStream(dem)
    first, last = errors.reach(np.array([0, 0, 1, 2]))
    assert (first.tolist(), last.tolist()) == ([0, 3, 1], [2, -1, 1])
    assert errors.selected(last >= 0).targets.tolist() == [0, 3, SEPARATOR, 1, 2]
    none = Errors.none()
    assert [len(each) for each in (none, *none.reach(np.array([0])), none.selected(np.empty(0, bool)))] == [0] * 4
