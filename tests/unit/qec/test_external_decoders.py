"""Other people's decoders in the panel: real where their package is installed, refused in one sentence where not."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import sinter
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.errors import InputError
from autoqec.qec.backends import make
from autoqec.qec.external_decoders import GUESTS, require, whole
from autoqec.qec.problem import Problem, incidence, read_mechanisms
from autoqec.qec.sampling import sample
from autoqec.sinter import Correlated
from tests.support.envs import problem, surface


def with_guest(name: str) -> EnvSpec:
    return EnvSpec.model_validate({**surface(3).dump(), "baselines": ["mwpm", name]})


def test_tesseract_decodes_for_real() -> None:
    """Most-likely error: fewer failures than matching, hyperedges not split."""
    pytest.importorskip("tesseract_decoder", reason="install: pip install tesseract-decoder")
    prob = Problem.from_env(with_guest("tesseract"))
    require(prob.env)
    shots = sample(prob, 3000, 1)
    lost = {name: int((make(name, prob).decode(shots.detectors) != shots.observables).sum()) for name in
            ("mwpm", "tesseract")}  # fmt: skip
    assert 0.5 * lost["mwpm"] < lost["tesseract"] < lost["mwpm"]


@pytest.mark.parametrize("name", sorted(GUESTS))
def test_a_missing_package_is_named_with_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, GUESTS[name].module, None)
    with pytest.raises(InputError, match="pip install") as caught:
        require(with_guest(name))
    assert name in str(caught.value) and "baselines" in str(caught.value)
    with pytest.raises(InputError, match="pip install"):
        make(name, problem(3))


def test_relay_bp_is_asked_for_by_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package needs a Rust build, so here another decoder answers under its names; the model comes unsplit."""
    given: list[stim.DetectorErrorModel] = []

    class StandIn(sinter.Decoder):  # type: ignore[misc]
        def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
            given.append(dem)
            return Correlated().compile_decoder_for_dem(dem=problem(3).dem)

    module = ModuleType("relay_bp.stim")
    module.sinter_decoders = lambda: {"relay-bp": StandIn()}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "relay_bp", ModuleType("relay_bp"))
    monkeypatch.setitem(sys.modules, "relay_bp.stim", module)
    prob = problem(3)
    shots = sample(prob, 200, 1)
    answers = make("relay_bp", prob).decode(shots.detectors)
    assert np.array_equal(answers, make("mwpm_correlated", prob).decode(shots.detectors))
    assert "^" not in str(given[0]) and "^" in str(prob.dem)


def test_a_problem_that_a_guest_does_not_take_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Choosy(sinter.Decoder):  # type: ignore[misc]
        def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
            raise RuntimeError("three detectors at most")

    module = ModuleType("choosy")
    module.listed = lambda: {"one": Choosy()}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "choosy", module)
    with pytest.raises(InputError, match="does not take this problem.*three detectors.*leave the decoder out"):
        make("sinter:choosy:listed:one", problem(3))


def test_a_whole_model_flips_what_its_parts_flip() -> None:
    prob = problem(3)
    probs, mechanisms = read_mechanisms(whole(prob.dem))
    H, L = incidence(mechanisms, prob.n_detectors, prob.n_observables)
    assert np.array_equal(probs, prob.fault_probs)
    assert not (H != prob.H).nnz and not (L != prob.L).nnz
    cancelling = stim.DetectorErrorModel("error(0.125) D0 D1 ^ D1 D2 L0 ^ L0")
    assert str(whole(cancelling)) == "error(0.125) D0 D2"
