"""External decoders: which are loaded, and that each decodes in its own process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.qec.backends import make_backend
from autoqec.qec.decoder_trust import KNOWN, registered_functions, trust_decoders
from autoqec.qec.external_decoders import require_installed, without_separators
from autoqec.qec.problem import Problem, incidence_matrices, read_mechanisms
from autoqec.qec.sampling import sample
from tests.support.envs import problem, surface

CORRELATED = "sinter:standin.listing:decoders:correlated"
SOURCE = "standin.listing:decoders"
LISTING = """
import os
import sinter
from pathlib import Path
from autoqec.sinter import CorrelatedMatchingDecoder

class Broken(sinter.Decoder):
    def compile_decoder_for_dem(self, *, dem):
        raise RuntimeError("three detectors at most")

class Dies(sinter.Decoder):
    def compile_decoder_for_dem(self, *, dem):
        return self
    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data):
        os._exit(7)

class Short(Dies):
    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data):
        return bit_packed_detection_event_data[:1, :1]

class Reads(Dies):
    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data):
        raise ValueError(Path(__file__).with_name("beside.txt").parents[2].joinpath("private").read_text())

class Split(CorrelatedMatchingDecoder):
    def compile_decoder_for_dem(self, *, dem):
        if "^" in str(dem):
            raise ValueError("mechanisms are split")
        raise ValueError("mechanisms are whole")

def decoders():
    print("output of a package")
    return {"correlated": CorrelatedMatchingDecoder(), "broken": Broken(), "dies": Dies(), "short": Short(),
            "reads": Reads(), "relay-bp": Split()}

sinter_decoders = decoders
"""


@pytest.fixture(autouse=True)
def no_trust() -> None:
    trust_decoders()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package `standin` on `sys.path`, outside the current directory, that registers nothing."""
    site = tmp_path / "site"
    write_package(site, "standin", "listing")
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "private").write_text("private text")
    return site


def write_package(site: Path, name: str, module: str) -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").touch()
    (site / name / f"{module}.py").write_text(LISTING)


def register(site: Path, value: str) -> None:
    info = site / "standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[autoqec.decoders]\nstandin = {value}\n")


def with_baseline(name: str) -> EnvSpec:
    return EnvSpec.model_validate({**surface(3).dump(), "baselines": ["mwpm", name]})


def test_tesseract_is_more_accurate_than_matching() -> None:
    pytest.importorskip("tesseract_decoder")
    prob = Problem.from_env(with_baseline("tesseract"))
    require_installed(prob.env)
    shots = sample(prob, 3000, 1)
    lost = {name: int((make_backend(name, prob).decode(shots.detection_events) != shots.observables).sum()) for name in
            ("mwpm", "tesseract")}  # fmt: skip
    assert 0.5 * lost["mwpm"] < lost["tesseract"] < lost["mwpm"]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_missing_package_is_named_with_an_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for use in (lambda: require_installed(with_baseline(name)), lambda: make_backend(name, problem(3))):
        with pytest.raises(UsageError, match="is not installed.*pip install") as caught:
            use()
        assert name in str(caught.value) and "baselines" in str(caught.value)


class TestTrust:
    def test_decoder_named_by_an_env_alone_is_not_loaded(self, package: Path) -> None:
        for use in (lambda: require_installed(with_baseline(CORRELATED)), lambda: make_backend(CORRELATED, problem(3))):
            with pytest.raises(UsageError, match="neither registered .* nor trusted.*--trust-decoder standin.listing:"):
                use()

    def test_function_of_the_standard_library_is_not_called(self) -> None:
        with pytest.raises(UsageError, match="nor trusted"):
            require_installed(with_baseline("sinter:os:abort:x"))

    def test_decoder_named_on_the_command_line_is_loaded(self, package: Path) -> None:
        trust_decoders([SOURCE])
        require_installed(with_baseline(CORRELATED))
        trust_decoders()
        with pytest.raises(UsageError, match="nor trusted"):
            require_installed(with_baseline(CORRELATED))

    def test_trust_is_for_one_function(self, package: Path) -> None:
        trust_decoders([SOURCE])
        with pytest.raises(UsageError, match="nor trusted"):
            require_installed(with_baseline("sinter:standin.listing:sinter_decoders:correlated"))

    def test_registered_decoder_is_loaded_but_not_from_an_archive(self, package: Path) -> None:
        register(package, SOURCE)
        assert SOURCE in registered_functions()
        require_installed(with_baseline(CORRELATED))
        trust_decoders(registered=False)
        with pytest.raises(UsageError, match="env from an archive.*--trust-decoder"):
            require_installed(with_baseline(CORRELATED))

    @pytest.mark.parametrize("entry", ["", "."])
    def test_current_directory_is_not_searched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
    ) -> None:
        """Neither for entry points nor for a trusted module, even if it is on `sys.path`."""
        write_package(tmp_path, "standin", "listing")
        register(tmp_path, SOURCE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(entry or str(tmp_path))
        assert SOURCE not in registered_functions()
        trust_decoders([SOURCE])
        with pytest.raises(UsageError, match="is not installed"):
            require_installed(with_baseline(CORRELATED))

    @pytest.mark.parametrize("name", ["standin", "standin:", "a:b:c", "a b:c", ":f", "a:b\n"])
    def test_malformed_name_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="MODULE:FUNCTION"):
            trust_decoders([name])


class TestProcess:
    @pytest.fixture(autouse=True)
    def trusted(self, package: Path) -> None:
        trust_decoders([SOURCE])

    def test_answers_equal_those_in_this_process(self) -> None:
        prob = problem(3)
        detection_events = sample(prob, 500, 1).detection_events
        external = make_backend(CORRELATED, prob)
        expected = make_backend("mwpm_correlated", prob).decode(detection_events)
        assert np.array_equal(external.decode(detection_events), expected)
        assert np.array_equal(external.decode(detection_events[:7]), expected[:7])
        assert external.decode(detection_events[:0]).shape == (0, 1)
        assert not any(name.startswith("standin") for name in sys.modules)

    @pytest.mark.parametrize(
        ("decoder", "message"),
        [
            ("broken", "does not take this problem.*three detectors at most"),
            ("absent", "KeyError: 'absent'"),
        ],
    )
    def test_decoder_that_cannot_be_made_is_reported(self, decoder: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            make_backend(f"sinter:standin.listing:decoders:{decoder}", problem(3))

    @pytest.mark.parametrize(
        ("decoder", "message"),
        [
            ("dies", "its process ended: exit status 7"),
            ("short", "answered 1 bytes, 5 were expected"),
        ],
    )
    def test_failure_while_decoding_is_reported(self, decoder: str, message: str) -> None:
        external = make_backend(f"sinter:standin.listing:decoders:{decoder}", problem(3))
        with pytest.raises(UsageError, match=message):
            external.decode(sample(problem(3), 5, 1).detection_events)

    def test_function_that_ends_the_process_is_reported(self) -> None:
        trust_decoders(["os:abort"])
        with pytest.raises(UsageError, match="its process ended: exit status"):
            require_installed(with_baseline("sinter:os:abort:x"))

    def test_decoder_reads_no_other_file(self, sandbox_backend: str) -> None:
        external = make_backend("sinter:standin.listing:decoders:reads", problem(3))
        with pytest.raises(UsageError, match="NotFoundError|PermissionError") as caught:
            external.decode(sample(problem(3), 5, 1).detection_events)
        assert "private text" not in str(caught.value)

    def test_process_ends_with_the_decoder(self) -> None:
        external = make_backend(CORRELATED, problem(3))
        pid = external._process._channel._process.pid  # type: ignore[attr-defined]
        del external
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_relay_bp_gets_mechanisms_that_are_not_split(self, package: Path) -> None:
        """The real package needs Rust; a fake package of its name reports its arguments."""
        write_package(package, "relay_bp", "stim")
        with pytest.raises(UsageError, match="mechanisms are whole"):
            make_backend("relay_bp", problem(3))


def test_model_without_separators_flips_the_same() -> None:
    prob = problem(3)
    probs, mechanisms = read_mechanisms(without_separators(prob.dem))
    H, L = incidence_matrices(mechanisms, prob.n_detectors, prob.n_observables)
    assert np.array_equal(probs, prob.mechanism_probs)
    assert not (H != prob.H).nnz and not (L != prob.L).nnz
    cancelling = stim.DetectorErrorModel("error(0.125) D0 D1 ^ D1 D2 L0 ^ L0")
    assert str(without_separators(cancelling)) == "error(0.125) D0 D2"
