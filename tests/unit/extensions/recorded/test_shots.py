"""Recorded shots: layouts, formats, conversion of measurements, and files that are rejected."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import stim
import yaml

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.events import ShotsRead
from autoqec.errors import UsageError
from autoqec.extensions.recorded import shots as shots_module
from autoqec.extensions.recorded.check import check_blocks
from autoqec.extensions.recorded.shots import Progress, RecordedShots, read_chunks
from autoqec.qec.sampling import Shots, sample
from tests.support.envs import problem
from tests.support.memory import little_memory
from tests.support.recorded import google_directory, plain_directory, unpacked, write_shots


def read_all(recorded: RecordedShots, block: int = 0) -> Shots:
    parts = list(recorded.chunks(recorded.layout.blocks[block]))
    return Shots(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))


@pytest.mark.parametrize("event_format", ["b8", "01", "r8", "ptb64", "hits", "dets"])
def test_every_format_of_stim_is_read(tmp_path: Path, event_format: str) -> None:
    recorded = RecordedShots.open(plain_directory(tmp_path, 640, 1, event_format))
    found, written = read_all(recorded), sample(problem(3), 640, 100)
    assert (found.detection_events == written.detection_events).all()
    assert (found.observables == written.observables).all()


def test_chunks_are_aligned_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shots_module, "CHUNK", 256)
    recorded = RecordedShots.open(plain_directory(tmp_path, 1000, 1))
    parts = list(recorded.chunks(recorded.layout.blocks[0]))
    assert [len(part) for part in parts] == [256, 256, 256, 232]
    assert all(len(part.observables) == len(part.detection_events) for part in parts)


def test_a_large_file_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "events.b8"
    with path.open("wb") as stream:
        stream.truncate(10**10)  # a sparse file
    with little_memory(2**28):
        parts = itertools.islice(read_chunks(path, 8000, "detectors"), 30)
        assert sum(len(part) for part in parts) == 30 * shots_module.CHUNK  # 492 MB


def test_layout_of_google_is_recognized(tmp_path: Path) -> None:
    recorded = RecordedShots.open(google_directory(tmp_path))
    block = recorded.layout.blocks[0]
    assert (recorded.layout.model, recorded.layout.rounds) == ("circuit_noisy.stim", 3)
    assert (block.basis, block.patch) == ("Z", "3_5")
    assert block.predictions == {"constant": "obs_flips_predicted_by_constant.01"}


def test_layout_of_google_with_decoding_results(tmp_path: Path) -> None:
    google_directory(tmp_path)
    results = tmp_path / "decoding_results" / "matching"
    results.mkdir(parents=True)
    (tmp_path / "obs_flips_predicted_by_constant.01").rename(results / "obs_flips_predicted.01")
    (tmp_path / "properties.yml").unlink()
    (tmp_path / "metadata.json").write_text(json.dumps({"rounds": 3, "processor": "chip"}))
    layout = RecordedShots.open(tmp_path).layout
    assert layout.blocks[0].predictions == {"matching": "decoding_results/matching/obs_flips_predicted.01"}
    assert layout.blocks[0].device == "chip" and layout.rounds == 3


def test_measurements_with_sweep_bits_give_the_recorded_events(tmp_path: Path) -> None:
    recorded = RecordedShots.open(google_directory(tmp_path))
    block = recorded.layout.blocks[0]
    converted = next(recorded.converted(block))
    stored = read_all(recorded)
    assert (converted.detection_events == stored.detection_events).all()
    assert (converted.observables == stored.observables).all()
    without = block.model_copy(update={"sweep_bits": None})
    with pytest.raises(UsageError, match="9 sweep bits, but there is no file"):
        list(recorded.converted(without))


def _other_distance(noisy: stim.Circuit) -> str:
    return str(problem(5).circuit.without_noise())


def _swapped_detectors(noisy: stim.Circuit) -> str:
    lines = str(noisy.without_noise().flattened()).splitlines()
    first, second, *_ = (index for index, line in enumerate(lines) if line.startswith("DETECTOR"))
    lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def _inverted_measurement(noisy: stim.Circuit) -> str:
    lines = str(noisy.without_noise()).splitlines()
    final = max(index for index, line in enumerate(lines) if line.startswith("M "))
    lines[final] = lines[final].replace("M ", "M !", 1)
    return "\n".join(lines)


def _random_observable(noisy: stim.Circuit) -> str:
    return f"{noisy.without_noise()}\nMX 1\nOBSERVABLE_INCLUDE(0) rec[-1]\n"


@pytest.mark.parametrize(
    ("ideal", "message"),
    [
        (_other_distance, "contradicts circuit_noisy.stim: it has 120 detectors, circuit_noisy.stim has 24"),
        (_swapped_detectors, "other values of D0, D1; hint"),
        (_inverted_measurement, "other values of D21, L0; hint"),
        (_random_observable, "without noise is not deterministic"),
        (lambda noisy: "not a circuit", "cannot read this model"),
    ],
)
def test_contradicting_ideal_circuit_is_rejected(
    tmp_path: Path, ideal: Callable[[stim.Circuit], str], message: str
) -> None:
    path = google_directory(tmp_path) / "circuit_ideal.stim"
    path.write_text(ideal(stim.Circuit.from_file(tmp_path / "circuit_noisy.stim")))
    with pytest.raises(UsageError, match=message) as caught:
        RecordedShots.open(tmp_path)
    assert caught.value.location == str(path) and caught.value.hint


def test_ideal_circuit_may_be_written_in_another_way(tmp_path: Path) -> None:
    noisy = stim.Circuit.from_file(google_directory(tmp_path) / "circuit_noisy.stim")
    fixed = [line for line in str(noisy.without_noise().flattened()).splitlines() if "sweep[" not in line]
    (tmp_path / "circuit_ideal.stim").write_text("\n".join(line for line in fixed if line != "TICK"))
    assert RecordedShots.open(tmp_path).source == noisy


def test_detectors_of_a_model_are_counted_against_the_ideal_circuit(tmp_path: Path) -> None:
    google_directory(tmp_path)
    (tmp_path / "circuit_noisy.stim").unlink()
    (tmp_path / "model.dem").write_text(str(problem(5).dem))
    with pytest.raises(UsageError, match="contradicts model.dem: it has 24 detectors, model.dem has 120"):
        RecordedShots.open(tmp_path)


def test_recorded_yaml_decides_which_circuit_is_used(tmp_path: Path) -> None:
    google_directory(tmp_path)
    (tmp_path / "circuit_ideal.stim").write_text(str(problem(5).circuit))
    block = {"detection_events": "detection_events.b8", "observables": "obs_flips_actual.01"}
    layout = {"model": "circuit_noisy.stim", "rounds": 3, "blocks": [block]}
    (tmp_path / "recorded.yaml").write_text(yaml.safe_dump(layout))
    assert RecordedShots.open(tmp_path).source.num_detectors == 24


Damage = Callable[[Path], None]


def cut(name: str, n_bytes: int) -> Damage:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:-n_bytes]) and None


def edit(name: str, old: str, new: str) -> Damage:
    def damage(directory: Path) -> None:
        text = (directory / name).read_text()
        assert old in text
        (directory / name).write_text(text.replace(old, new, 1))

    return damage


def _compress(directory: Path) -> None:
    path = directory / "events0.b8"
    path.write_bytes(gzip.compress(path.read_bytes()))


def _text(directory: Path) -> None:
    write_shots(directory / "text.01", unpacked(sample(problem(3), 100, 1), 24))
    (directory / "text.01").replace(directory / "events0.b8")


def _padding(directory: Path) -> None:
    (directory / "flips0.b8").write_bytes(b"\xff" * 640)
    edit("recorded.yaml", "flips0.01", "flips0.b8")(directory)


def _outside(directory: Path) -> None:
    (directory.parent / "elsewhere.01").write_bytes((directory / "flips0.01").read_bytes())
    edit("recorded.yaml", "flips0.01", "../elsewhere.01")(directory)


def _no_errors(directory: Path) -> None:
    (directory / "model.dem").write_text("detector D23\nlogical_observable L0")
    edit("recorded.yaml", "circuit.stim", "model.dem")(directory)


def _no_noise(directory: Path) -> None:
    (directory / "circuit.stim").write_text(str(problem(3).circuit.without_noise()))


BAD: dict[str, tuple[Damage, str]] = {
    "truncated": (cut("events0.b8", 1), "not a multiple of 3"),
    "shots missing": (cut("events0.b8", 30), "has 630 shots, but flips0.01 has 640"),
    "gzip": (_compress, "compressed .gzip"),
    "text where binary is expected": (_text, "text of 0 and 1"),
    "padding bits": (_padding, "beyond the last of the observables"),
    "missing file": (lambda directory: (directory / "flips0.01").unlink(), "is not a file"),
    "outside the directory": (_outside, "outside the directory"),
    "random detector": (edit("circuit.stim", "QUBIT", "H 1\nM 1\nDETECTOR rec[-1]\nQUBIT"), "not deterministic"),
    "no circuit": (edit("circuit.stim", "QUBIT", "this is not a circuit"), "stim cannot read"),
    "observables missing": (edit("recorded.yaml", "observables: flips0.01", "time: today"), "must be given together"),
    "time": (edit("recorded.yaml", "device: simulated", "time: yesterday"), "`time` 'yesterday' is not in ISO 8601"),
    "circuit without noise": (_no_noise, "has no noise"),
    "model without errors": (_no_errors, "has no noise"),
    "number in place of text": (edit("recorded.yaml", "device: simulated", "device: 12"), "device"),
}


def test_blocks_are_in_the_order_of_time(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path, 64, 3)
    layout = yaml.safe_load((directory / "recorded.yaml").read_text())
    times = ["2026-01-02T10:00:00Z", None, "2026-01-02T11:30:00+02:00"]
    layout["blocks"] = [block | {"time": time} for block, time in zip(layout["blocks"], times, strict=True)]
    (directory / "recorded.yaml").write_text(yaml.safe_dump(layout))
    with pytest.raises(UsageError, match="was recorded before block 0") as error:
        RecordedShots.open(directory)
    assert "block 2" in str(error.value.location)
    layout["blocks"][2]["time"] = "2026-01-02 10:00:00"  # without a time zone: UTC
    (directory / "recorded.yaml").write_text(yaml.safe_dump(layout))
    assert len(RecordedShots.open(directory).layout.blocks) == 3


@pytest.mark.parametrize("content", [b"rounds: three", b"rounds: 0"])
def test_bad_metadata_name_their_file(tmp_path: Path, content: bytes) -> None:
    directory = google_directory(tmp_path, 64)
    (directory / "properties.yml").write_bytes(content)
    with pytest.raises(UsageError, match="`rounds` is .*, not a whole number of 1 or more") as error:
        RecordedShots.open(directory)
    assert str(error.value.location).endswith("properties.yml")


def test_other_line_ends_are_not_taken_for_other_rounds(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path / "data", 640, 1)
    flips = directory / "flips0.01"
    flips.write_bytes(flips.read_bytes().replace(b"\n", b"\r\n"))
    (found,) = check_blocks(RecordedShots.open(directory), problem(3))
    assert found.diagnoses == () and found.counts is not None and found.counts.shots == 640


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_rejected(tmp_path: Path, name: str) -> None:
    directory = plain_directory(tmp_path / "data", 640, 1)
    damage, message = BAD[name]
    damage(directory)
    with pytest.raises(UsageError, match=message) as error:
        read_all(RecordedShots.open(directory))
    assert error.value.hint and error.value.location


def test_directory_without_layout_names_its_experiments(tmp_path: Path) -> None:
    google_directory(tmp_path / "experiment")
    with pytest.raises(UsageError, match="neither recorded.yaml nor circuit_noisy.stim") as error:
        RecordedShots.open(tmp_path)
    assert "experiment" in str(error.value.hint)


def test_detector_error_model_as_model(tmp_path: Path) -> None:
    plain_directory(tmp_path, 640, 1)
    (tmp_path / "model.dem").write_text(str(problem(3).dem))
    layout = yaml.safe_load((tmp_path / "recorded.yaml").read_text()) | {"model": "model.dem"}
    (tmp_path / "recorded.yaml").write_text(yaml.safe_dump(layout))
    recorded = RecordedShots.open(tmp_path)
    assert isinstance(recorded.source, stim.DetectorErrorModel) and len(read_all(recorded)) == 640


def test_hashing_is_reported(tmp_path: Path) -> None:
    recorded, seen = RecordedShots.open(plain_directory(tmp_path, 64, 1)), list[ShotsRead]()
    content = bytes(5 << 20)
    (tmp_path / "events0.b8").write_bytes(content)
    files = {file.path: file for file in recorded.files(Progress(seen.append))}
    assert files["events0.b8"].sha256 == sha256_bytes(content) and files["events0.b8"].bytes == 5 << 20
    assert [event.done >> 20 for event in seen if event.what == "hashing events0.b8"] == [1, 2, 3, 4, 5]
