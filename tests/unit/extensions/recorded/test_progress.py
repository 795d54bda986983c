"""Reading of large recordings: progress, and commands that continue where an interrupted one stopped."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.contracts.events import Event, ShotsRead
from autoqec.contracts.recorded import RecordedManifest
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.recorded import check, decoding, estimation, likelihood, progress, shots, statistics
from autoqec.extensions.recorded.block_comparison import BlockCounts
from autoqec.extensions.recorded.check import check_blocks
from autoqec.extensions.recorded.decoding import SliceErrors, compare
from autoqec.extensions.recorded.env import check_hashes, read_manifest
from autoqec.extensions.recorded.estimation import estimate_recorded
from autoqec.extensions.recorded.progress import Reading, hash_file
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.orchestrator.recorded_place import check_place
from autoqec.orchestrator.run_checks import check_recorded
from autoqec.qec.backends import make_backend
from autoqec.qec.sampling import unpack
from autoqec.store.files import load_env
from tests.support.envs import problem
from tests.support.recorded import plain_directory, recorded_env

SEGMENT = 1000
BLOCK = {"detection_events": "events0.b8", "observables": "flips0.b8"}


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(progress, "SEGMENT", SEGMENT)
    monkeypatch.setattr(progress, "SMALLEST_SAVED", SEGMENT)
    monkeypatch.setattr(progress, "HASHED", 300)
    monkeypatch.setattr(shots, "CHUNK", 256)


class Interrupted:
    """Reports; Ctrl-C arrives with the report of `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.reports = stop, list[tuple[str, int, int | None]]()

    def __call__(self, label: str, done: int, total: int | None) -> None:
        self.reports.append((label, done, total))
        if self.stop is not None and done >= self.stop:
            raise KeyboardInterrupt

    @property
    def first(self) -> int:
        return self.reports[0][1]


class StopAt(Interrupted):
    """Reports; Ctrl-C arrives when a step has read `done`."""

    def __init__(self, label: str, done: int) -> None:
        super().__init__()
        self.label, self.done = label, done

    def __call__(self, label: str, done: int, total: int | None) -> None:
        super().__call__(label, done, total)
        if label == self.label and done >= self.done:
            raise KeyboardInterrupt


def counted_shots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the sizes of the parts whose detection events are counted from now on."""
    counted: list[int] = []

    def noted(packed: np.ndarray, n_detectors: int) -> np.ndarray:
        counted.append(len(packed))
        return unpack(packed, n_detectors)

    monkeypatch.setattr(statistics, "unpack", noted)
    return counted


def recording(tmp_path: Path, size: int = 10_500) -> tuple[Path, bytes]:
    content = np.random.default_rng(1).bytes(size)
    (tmp_path / "events.b8").write_bytes(content)
    return tmp_path / "events.b8", content


def of_segments(content: bytes) -> str:
    parts = [content[start : start + SEGMENT] for start in range(0, len(content), SEGMENT)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@pytest.mark.parametrize("size", [999, 1000, 3000, 10_500])
def test_hash_is_that_of_the_content_or_of_its_segments(tmp_path: Path, size: int) -> None:
    path, content = recording(tmp_path, size)
    assert hash_file(path, "events", None, Reading()) == hashlib.sha256(content).hexdigest()
    assert hash_file(path, "events", SEGMENT, Reading()) == of_segments(content)


def test_interrupted_hash_continues_after_its_last_segment(tmp_path: Path) -> None:
    path, content = recording(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path, Interrupted(7_300)))
    again = Interrupted()
    assert hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path, again)) == of_segments(content)
    assert 7_000 < again.first <= 7_300 and again.reports[-1][1:] == (10_500, 10_500)


@pytest.mark.parametrize("change", ["content", "time", "replaced"])
def test_hash_of_a_changed_file_starts_again(tmp_path: Path, change: str) -> None:
    path, content = recording(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path, Interrupted(7_300)))
    status = path.stat()
    if change == "time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        content = b"x" + content[1:]
        path.write_bytes(content) if change == "content" else path.with_name("new").write_bytes(content)
        if change == "replaced":
            path.with_name("new").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = Interrupted()
    assert hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path, again)) == of_segments(content)
    assert again.first <= 300


def test_hash_of_a_file_that_changes_meanwhile_is_not_continued(tmp_path: Path) -> None:
    path, content = recording(tmp_path)

    class Changed(Interrupted):
        def __call__(self, label: str, done: int, total: int | None) -> None:
            if done == 3_300:
                path.write_bytes(b"x" + content[1:])
            super().__call__(label, done, total)

    with pytest.raises(KeyboardInterrupt):
        hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path, Changed(7_300)))
    assert hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path)) == of_segments(b"x" + content[1:])


def test_damaged_state_is_ignored(tmp_path: Path) -> None:
    path, content = recording(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path, Interrupted(7_300)))
    (saved,) = (tmp_path / "cache/autoqec/recorded").glob("*/*.npz")
    saved.write_bytes(saved.read_bytes()[:-20])
    assert hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path)) == of_segments(content)


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    path, content = recording(tmp_path)
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    assert hash_file(path, "events", SEGMENT, Reading.resumable(tmp_path)) == of_segments(content)


def test_finished_reading_leaves_nothing(tmp_path: Path) -> None:
    path, _ = recording(tmp_path)
    reading = Reading.resumable(tmp_path)
    hash_file(path, "events", SEGMENT, reading)
    assert list((tmp_path / "cache").rglob("*.npz"))
    reading.finish()
    assert not list((tmp_path / "cache").rglob("*.npz"))


@pytest.mark.parametrize("interrupted", [False, True])
def test_start_of_a_run_keeps_its_reading_only_if_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    monkeypatch.setattr(progress, "SEGMENT", 5_000)  # more than the circuit, which is hashed as a whole
    env = load_env(recorded_env(tmp_path, 3500))[0]
    events = tmp_path / "data/events0.b8"
    events.write_bytes(events.read_bytes()[:-1] + b"x")  # found after most segments are hashed

    def on_event(event: Event) -> None:
        if interrupted and isinstance(event, ShotsRead) and event.done > 7_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt if interrupted else UsageError, match=None if interrupted else "events0.b8"):
        check_recorded(env, tmp_path, on_event)
    assert any((tmp_path / "cache").rglob("*.npz")) == interrupted


def test_interrupted_check_of_moved_shots_continues_after_its_last_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `run --resume --recorded DIR`, `verify --recorded DIR` and `replay --recorded DIR`."""
    monkeypatch.setattr(progress, "SEGMENT", 5_000)  # more than the circuit, which is hashed as a whole
    env = load_env(recorded_env(tmp_path, 3500))[0]
    stopped, again = (list[ShotsRead]() for _ in range(2))

    def stop(event: Event) -> None:
        assert isinstance(event, ShotsRead)
        stopped.append(event)
        if event.what == "hashing events1.b8" and event.done > 7_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_place(env, tmp_path / "data", "run", stop)
    check_place(env, tmp_path / "data", "run", again.append)
    first = {event.what: event.done for event in reversed(again)}
    assert [first[f"hashing events{index}.b8"] for index in (0, 1)] == [10_300, 5_300]
    assert not any((tmp_path / "cache").rglob("*.npz"))


def test_large_files_of_a_manifest_are_hashed_in_segments(tmp_path: Path) -> None:
    manifest = read_manifest(recorded_env(tmp_path, 3500).with_name("env.recorded.json"))
    segments = {file.path: file.segment_bytes for file in manifest.files}
    assert segments["events0.b8"] == SEGMENT  # 10,500 bytes
    recorded = RecordedShots.open(tmp_path / "data")
    check_hashes(recorded, manifest, "hint")
    content = bytearray((tmp_path / "data/events0.b8").read_bytes())
    content[5_000] ^= 1
    (tmp_path / "data/events0.b8").write_bytes(content)
    with pytest.raises(UsageError, match="is not the file of the manifest"):
        check_hashes(recorded, manifest, "hint")


def test_manifests_with_hashes_of_whole_files_stay_valid(tmp_path: Path) -> None:
    manifest = read_manifest(recorded_env(tmp_path, 3500).with_name("env.recorded.json")).dump()
    for file in manifest["files"]:
        del file["segment_bytes"]
        file["sha256"] = hashlib.sha256((tmp_path / "data" / file["path"]).read_bytes()).hexdigest()
    old = RecordedManifest.read(manifest, location="manifest")
    check_hashes(RecordedShots.open(tmp_path / "data"), old, "hint")


def test_manifest_with_too_many_segments_is_refused() -> None:
    """Each segment costs a digest in memory: one per byte of a large file would take hours."""
    file = {"path": "events0.b8", "bytes": 10**10, "sha256": "0" * 64}
    manifest = {"directory": "data", "layout": {"model": "a.dem", "blocks": [BLOCK]}, "shots": [1], "files": [file]}
    RecordedManifest.read(manifest | {"files": [file | {"segment_bytes": 1 << 28}]}, location="manifest")
    with pytest.raises(ContractError, match=r"`segment_bytes` 1 .*'events0.b8'.* more than 65536 .*add-env") as caught:
        RecordedManifest.read(manifest | {"files": [file | {"segment_bytes": 1}]}, location="manifest")
    assert caught.value.location == "manifest"


def test_interrupted_check_continues_from_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SAMPLE", 256)
    recorded = RecordedShots.open(plain_directory(tmp_path / "data", 8000, 2))
    straight = check_blocks(recorded, problem(3))
    counted = counted_shots(monkeypatch)
    stop = StopAt("checking block 2 of 2", 6_000)
    with pytest.raises(KeyboardInterrupt):
        check_blocks(recorded, problem(3), reading=Reading.resumable(tmp_path / "data", stop))
    before = sum(counted)
    counted.clear()
    again = Interrupted()
    resumed = check_blocks(recorded, problem(3), reading=Reading.resumable(tmp_path / "data", again))
    assert 0 < sum(counted) < 16_000 - before + 1000  # nothing that was saved is counted again
    for one, other in zip(straight, resumed, strict=True):
        assert one.counts is not None and other.counts is not None and one.counts.shots == other.counts.shots
        assert (one.counts.single == other.counts.single).all() and (one.counts.pairs == other.counts.pairs).all()
        assert one.diagnoses == other.diagnoses
    assert again.reports[-1] == ("checking block 2 of 2", 8000, 8000)


@pytest.mark.parametrize("max_shots", [1 << 20, 2048])
def test_interrupted_estimate_continues_from_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_shots: int
) -> None:
    monkeypatch.setattr(likelihood, "MAX_SHOTS", max_shots)  # every chunk, or every third one
    recorded = RecordedShots.open(plain_directory(tmp_path / "data", 4000, 2))
    straight = estimate_recorded(problem(3), recorded, 6000, Reading())
    stop = StopAt("estimating the model", 5000)
    with pytest.raises(KeyboardInterrupt):
        estimate_recorded(problem(3), recorded, 6000, Reading.resumable(tmp_path, stop))
    counted = counted_shots(monkeypatch)
    reading = Reading.resumable(tmp_path)
    assert str(estimate_recorded(problem(3), recorded, 6000, reading)) == str(straight)
    assert 0 < sum(counted) <= 1000 + 2 * 256  # after a segment of at most two chunks
    counted.clear()
    monkeypatch.setattr(estimation, "match_moments", None)  # the result is kept for the steps that follow
    assert str(estimate_recorded(problem(3), recorded, 6000, reading)) == str(straight) and not counted


@pytest.mark.parametrize("change", ["hashes", "shots", "model", "code", "file", "layout"])
def test_estimate_of_other_inputs_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    recorded = RecordedShots.open(plain_directory(tmp_path / "data", 4000, 1))
    model, shots, hashes = problem(3), 4000, ["a"]
    reading = Reading.resumable(tmp_path)
    estimate_recorded(model, recorded, shots, reading, hashes=hashes)
    if change == "hashes":
        hashes = ["b"]
    elif change == "shots":
        shots = 3999
    elif change == "model":
        model = problem(3, 0.012)
    elif change == "code":
        monkeypatch.setattr(progress, "_code_sha256", lambda: "other")
    elif change == "layout":
        block = recorded.layout.blocks[0].model_copy(update={"device": "another"})
        recorded = replace(recorded, layout=recorded.layout.model_copy(update={"blocks": (block,)}))
    else:
        os.utime(tmp_path / "data/events0.b8")
    counted = counted_shots(monkeypatch)
    estimate_recorded(model, recorded, shots, reading, hashes=hashes)
    assert sum(counted) == shots


@pytest.mark.parametrize("wrong", [{"probs": np.full(3, 0.1)}, {"probs": -1.0}, {"probs": 0.6}, {"probs": np.nan}, {}])
def test_saved_estimate_that_is_not_plausible_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, np.ndarray | float]
) -> None:
    recorded, model = RecordedShots.open(plain_directory(tmp_path / "data", 640, 1)), problem(3)
    straight = estimate_recorded(model, recorded, 640, Reading.resumable(tmp_path))
    saved = next((tmp_path / "cache/autoqec/recorded").glob("*/estimate.npz"))
    arrays = dict(np.load(saved))
    shape = arrays["probs"].shape
    filled = {name: np.full(shape, value) if isinstance(value, float) else value for name, value in wrong.items()}
    np.savez(saved, made_from=arrays["made_from"], **filled)  # type: ignore[arg-type]
    assert str(estimate_recorded(model, recorded, 640, Reading.resumable(tmp_path))) == str(straight)


class CountingDecoder:
    """Predicts no flip; counts the shots that it decodes."""

    shots = 0

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        self.shots += len(detection_events)
        return np.zeros((len(detection_events), 1), bool)


def test_interrupted_decoding_continues_after_its_last_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SAVED_SHOTS", 500)
    recorded = RecordedShots.open(plain_directory(tmp_path / "data", 4000, 2))
    matching = make_backend("mwpm", problem(3))
    span, size = (1000, 8000), 300

    def compared(reading: Reading, **inputs: str) -> tuple[int, Any]:
        constant = CountingDecoder()
        found = compare(recorded, {"mwpm": matching, "constant": constant}, "mwpm", span, size, reading, **inputs)
        return constant.shots, found

    decoded, straight = compared(Reading())
    assert decoded == 7000 and straight[1]["constant"].shots == 6900 and straight[1]["constant"].blocks == 23
    stop = StopAt("decoding", 5000)
    with pytest.raises(KeyboardInterrupt):
        compared(Reading.resumable(tmp_path, stop))
    again = Interrupted()
    decoded, resumed = compared(Reading.resumable(tmp_path, again))
    assert 2000 <= decoded <= 2000 + 2 * 512 and resumed == straight and again.reports[-1][1:] == (7000, 7000)
    assert compared(Reading.resumable(tmp_path), estimated="another model") == (7000, straight)


def test_slices_do_not_depend_on_the_chunks() -> None:
    rng = np.random.default_rng(3)
    wrong = {"mwpm": rng.random(1000) < 0.2, "other": rng.random(1000) < 0.15}
    expected = BlockCounts()
    for start in range(0, 900, 300):
        expected.add(*(mask[start : start + 300] for mask in wrong.values()))
    for chunk in (7, 300, 450, 1000):
        errors = SliceErrors("mwpm", 300)
        for start in range(0, 1000, chunk):
            errors.add({name: mask[start : start + chunk] for name, mask in wrong.items()})
        counts, effects = errors.results()
        assert counts == {name: int(mask[:900].sum()) for name, mask in wrong.items()}
        assert effects == {"other": expected.effect()}
    assert SliceErrors("mwpm", 300).results() == ({}, {})
