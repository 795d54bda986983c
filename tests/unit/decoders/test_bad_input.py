"""Input that cannot be decoded, through the Python API, sinter and the decoder itself: each error names a remedy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stim
import torch

import autoqec
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.qec import weighted_mwpm
from autoqec.sinter import PredecoderDecoder, decoders
from autoqec.store.files import dump_config
from tests.support.envs import problem, repetition
from tests.unit.decoders.test_gating import gated_checkpoint

N_DETECTORS = 24  # of distance 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a gated checkpoint of distance 3 and its env."""
    directory = tmp_path_factory.mktemp("made")
    env = problem(3).env
    (directory / "env.yaml").write_text(dump_config(env.dump()), encoding="utf-8")
    return gated_checkpoint(directory, env), directory / "env.yaml"


def api(made: tuple[Path, Path], events: Any) -> np.ndarray:
    return autoqec.decode(made[0], events, env=made[1], unverified=True)


@pytest.mark.parametrize("value", [7, -1, 0.5, np.nan, "1"])
def test_values_other_than_detection_events_are_refused(made: tuple[Path, Path], value: Any) -> None:
    with pytest.raises(UsageError, match="other than 0 and 1.*1 if it fired"):
        api(made, np.full((2, N_DETECTORS), value))


@pytest.mark.parametrize("dtype", [bool, np.uint8, float])
def test_zeros_and_ones_of_any_dtype_are_decoded(made: tuple[Path, Path], dtype: type) -> None:
    assert api(made, np.zeros((2, N_DETECTORS), dtype)).tolist() == [[False], [False]]


def test_bit_packed_shots_are_refused_with_a_hint(made: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="unpack bit-packed shots with np.unpackbits"):
        api(made, np.zeros((2, N_DETECTORS // 8), np.uint8))


def test_weights_that_are_not_numbers_are_refused_with_a_hint(made: tuple[Path, Path], tmp_path: Path) -> None:
    payload = torch.load(made[0], weights_only=True)
    payload["state_dict"]["body.first.weight"][0, 0] = float("nan")
    torch.save(payload, tmp_path / "nan.pt")
    calls = (
        lambda: api((tmp_path / "nan.pt", made[1]), np.zeros((1, N_DETECTORS), bool)),
        lambda: PredecoderDecoder(str(made[1]), str(tmp_path / "nan.pt")).compile_decoder_for_dem(dem=problem(3).dem),
    )
    for call in calls:
        with pytest.raises(ContractError, match="first.weight` holds values that are not finite; hint: use another"):
            call()


def test_missing_c_extension_is_a_warning(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the factory of decoders, none of its workers."""
    shots = np.zeros((1, N_DETECTORS), bool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        api(made, shots)
        decoders()
    monkeypatch.setattr(weighted_mwpm, "compiled_soft_matcher", lambda: None)
    message = "the C extension is not built, so decoding is slower; see autoqec doctor"
    with pytest.warns(RuntimeWarning, match=message):
        api(made, shots)
    with pytest.warns(RuntimeWarning, match=message):
        decoders()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PredecoderDecoder(str(made[1]), str(made[0])).compile_decoder_for_dem(dem=problem(3).dem)


def test_gate_without_confidence_names_the_checkpoint(made: tuple[Path, Path], tmp_path: Path) -> None:
    """An error model in which a closed loop flips the observable, and an inner decoder that is not matching."""
    detectors = [stim.target_relative_detector_id(int(each)) for each in problem(3).matching_graph.in_sector[[0, 5]]]
    dem = problem(3).dem.copy()
    dem.append("error", [0.01], [*detectors, stim.target_logical_observable_id(0)])
    hint = "the checkpoint decodes behind a gate: use one without a gate"
    with pytest.raises(AutoqecError, match=f"closed loop of edges.*{hint}"):
        CheckpointDecoder.of(problem(3).env, made[0], dem, allow_other_dem=True)
    env = repetition().model_copy(update={"backend": "bposd", "baselines": ("bposd0",)})
    with pytest.raises(AutoqecError, match=f"backend `bposd` does not have.*{hint}"):
        CheckpointDecoder.of(env, gated_checkpoint(tmp_path, env))
