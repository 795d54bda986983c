"""Reading of large recordings: progress, and commands that continue where an interrupted one stopped."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from autoqec.contracts.events import Event, ShotsRead
from autoqec.contracts.recorded import RecordedManifest
from autoqec.errors import ContractError, UsageError
from autoqec.orchestrator.recorded_place import check_place
from autoqec.orchestrator.run_checks import check_recorded
from autoqec.qec.recorded import check, progress, shots, statistics
from autoqec.qec.recorded.check import check_blocks
from autoqec.qec.recorded.env import check_hashes, read_manifest
from autoqec.qec.recorded.progress import Reading, hash_file
from autoqec.qec.recorded.shots import RecordedShots
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
    counted: list[int] = []

    def noted(packed: np.ndarray, n_detectors: int) -> np.ndarray:
        counted.append(len(packed))
        return unpack(packed, n_detectors)

    monkeypatch.setattr(statistics, "unpack", noted)
    stopped = Interrupted()

    def stop_in_second_block(label: str, done: int, total: int | None) -> None:
        stopped(label, done, total)
        if label == "checking block 2 of 2" and done >= 6_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_blocks(recorded, problem(3), reading=Reading.resumable(tmp_path / "data", stop_in_second_block))
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
