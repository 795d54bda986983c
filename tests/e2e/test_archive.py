"""Archives: a run is packed into one file, restored elsewhere and verified again; changed bytes are reported."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import ignore
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, UsageError
from autoqec.locate import builtin_envs
from autoqec.orchestrator import archive as archive_module
from autoqec.orchestrator.archive import package_run, publish_secret, replay_archive
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.verify_round import replay
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import read_contract
from autoqec.system.git import Repo
from autoqec.verification import shot_stream
from tests.support.archives import git, unpacked
from tests.support.starts import start_run
from tests.unit.system.test_run_lock import owner_process


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunLayout, Path, Path]:
    """Return the layout of a closed run with one verified round, its archive, and an archive made while it was open."""
    root = tmp_path_factory.mktemp("archive")
    make_workspace(root / "workspace", builtin_envs()["smoke"])
    with start_run(root / "workspace/env.yaml", root / "workspace", "smoke", 1) as run:
        run_rounds(run, 1, ignore)
        layout, repo = run.layout, run.repo
    open_archive, closed_archive = root / "open.tar", root / "closed.tar"
    package_run(layout, repo, open_archive)
    publish_secret(layout, repo)
    package_run(layout, repo, closed_archive)
    return layout, open_archive, closed_archive


def test_closed_run_is_verified_again_elsewhere(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    layout, _, archive = packed
    row = History(layout).rows()[0]
    found = replay_archive(archive, tmp_path / "elsewhere", on_event=ignore)
    assert found.agrees
    if row.verify_verdict is not None:
        message = found.verdicts[1]
        assert message.startswith(f"{row.verify_verdict} again on the same shots (") and "redrawn from" in message
    restored_repo = Repo.discover(tmp_path / "elsewhere")
    assert restored_repo.head_sha() == History(layout).info().baseline_sha
    assert git(restored_repo.root, "fsck", "--no-dangling") == ""
    assert restored_repo.refs("refs/heads/exp") == Repo.discover(layout.repo_root).refs("refs/heads/exp")
    assert History(found.layout).rows() == History(layout).rows()


def test_archive_of_an_open_run_has_no_secret(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    _, archive, _ = packed
    manifest, members = unpacked(archive)
    assert not manifest.closed
    assert not {"run/secret", "run/owner.json"} & set(members)
    found = replay_archive(archive, tmp_path / "elsewhere", on_event=ignore)
    assert found.agrees and ("stay secret" in found.verdicts[1] or "not verified" in found.verdicts[1])


def test_packing_is_deterministic(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    layout, _, archive = packed
    package_run(layout, Repo.discover(layout.repo_root), tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()


def test_run_in_progress_is_not_packed(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    """Its files could be inconsistent; the error names the process that holds the run."""
    layout, _, _ = packed
    with owner_process(layout.root) as process, pytest.raises(UsageError, match="held by process") as found:
        package_run(layout, Repo.discover(layout.repo_root), tmp_path / "run.tar")
    assert f"kill {process.pid}" in str(found.value)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_run_is_recovered_before_packing(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    shutil.copytree(
        packed[0].repo_root, tmp_path / "workspace", symlinks=True, ignore=shutil.ignore_patterns("owner.json")
    )
    layout, repo = RunLayout(tmp_path / "workspace", packed[0].run_id), Repo.discover(tmp_path / "workspace")
    with layout.history.open("a") as stream:
        stream.write('{"kind":"row","rou')
    with pytest.raises(UsageError, match=f"heal: .*incomplete.* autoqec reconcile {layout.run_id}"):
        package_run(layout, repo, tmp_path / "run.tar")
    assert not (tmp_path / "run.tar").exists()
    reconcile(layout, repo)
    package_run(layout, repo, tmp_path / "run.tar")
    assert replay_archive(tmp_path / "run.tar", tmp_path / "elsewhere", on_event=ignore).agrees


def test_shots_that_cannot_be_redrawn_are_read_from_the_archive(
    packed: tuple[RunLayout, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of stim draws other shots for a seed, here simulated by the next seed."""
    layout, _, archive = packed
    verification = read_contract(layout.round(1).report_json, VerifyReport)
    assert verification is not None
    bare = tmp_path / "bare.tar"
    package_run(layout, Repo.discover(layout.repo_root), bare, shots=False)
    names = {entry.name for entry in unpacked(archive)[0].files} - {e.name for e in unpacked(bare)[0].files}
    assert names == {f"run/shots/{digest}.b8" for digest in shot_stream.report_chunk_digests(verification).values()}
    real = shot_stream.sample
    monkeypatch.setattr(shot_stream, "sample", lambda problem, n, seed: real(problem, n, seed + 1))
    found = replay_archive(archive, tmp_path / "elsewhere", on_event=ignore)
    assert found.agrees and f"{len(names)} of {len(names)} chunks from the archive: stim" in found.verdicts[1]
    without = replay_archive(bare, tmp_path / "bare", on_event=ignore)
    assert not without.agrees and "shots were not reproduced" in without.verdicts[1]
    chunk_file = found.layout.shots / min(path.name for path in found.layout.shots.iterdir())
    chunk_file.write_bytes(chunk_file.read_bytes()[:-1] + b"x")
    with pytest.raises(ContractError, match=f"{chunk_file.name}: content has SHA-256"):
        replay(found.layout, Repo.discover(found.layout.repo_root), 1, ignore)


@pytest.mark.long
def test_restored_run_packs_into_the_same_bytes(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    found = replay_archive(packed[2], tmp_path / "elsewhere", on_event=ignore)
    package_run(found.layout, Repo.discover(found.layout.repo_root), tmp_path / "again.tar")
    again, first = unpacked(tmp_path / "again.tar")[0], unpacked(packed[2])[0]
    mine, theirs = (
        {e.name: e.sha256 for e in manifest.files if e.name != "branches.bundle"} for manifest in (again, first)
    )
    assert mine == theirs


def repacked(archive: Path, target: Path, change: dict[str, bytes | None]) -> Path:
    """Write the archive with members replaced, added or (None) removed."""
    with tarfile.open(archive, "r:") as tar:
        members = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    members.update(change)  # type: ignore[arg-type]
    with tarfile.open(target, mode="w") as tar:
        for name, data in members.items():
            if data is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return target


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("run/history.jsonl", b"{}\n", "run/history.jsonl: .*changed"),
        ("run/round_1/checkpoint.pt", b"x", "run/round_1/checkpoint.pt: .*changed"),
        ("branches.bundle", b"# v2 git bundle\n", "branches.bundle: .*changed"),
        ("run/round_1/config.yaml", None, "run/round_1/config.yaml: is .*missing"),
        ("run/extra.txt", b"hello", "its end: is .*changed"),
        ("archive.json", b"{", "archive.json: is damaged"),
        ("../outside", b"hello", "its end: is .*changed"),
    ],
)
def test_changed_member_is_named(
    packed: tuple[RunLayout, Path, Path], tmp_path: Path, name: str, data: bytes | None, message: str
) -> None:
    changed = repacked(packed[2], tmp_path / "changed.tar", {name: data})
    with pytest.raises(ContractError, match=message):
        replay_archive(changed, tmp_path / "elsewhere", on_event=ignore)
    assert not (tmp_path / "elsewhere").exists()


def test_flipped_byte_anywhere_is_detected(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    archive_bytes = packed[2].read_bytes()
    for offset in [
        *range(0, len(archive_bytes), len(archive_bytes) // 40),
        *range(0, 600, 17),
        *range(len(archive_bytes) - 600, len(archive_bytes), 17),
    ]:
        flipped = tmp_path / "flipped.tar"
        flipped.write_bytes(archive_bytes[:offset] + bytes([archive_bytes[offset] ^ 1]) + archive_bytes[offset + 1 :])
        with pytest.raises(ContractError):
            unpacked(flipped)


def test_changed_byte_of_a_header_is_named_by_its_offset(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    with tarfile.open(packed[2], "r:") as tar:
        header = tar.getmember("run/history.jsonl").offset
    archive_bytes = bytearray(packed[2].read_bytes())
    flipped = tmp_path / "flipped.tar"
    for offset in (header + 5, len(archive_bytes) - 1, header - 1):
        archive_bytes[offset] ^= 1
        flipped.write_bytes(archive_bytes)
        with pytest.raises(ContractError, match=f"byte {offset} of {len(archive_bytes)}"):
            unpacked(flipped)
        archive_bytes[offset] ^= 1


def test_invalid_targets_are_refused(packed: tuple[RunLayout, Path, Path], tmp_path: Path) -> None:
    layout, _, archive = packed
    with pytest.raises(UsageError, match="exists already"):
        package_run(layout, Repo.discover(layout.repo_root), archive)
    with pytest.raises(UsageError, match="does not exist"):
        replay_archive(tmp_path / "none.tar", tmp_path / "elsewhere", on_event=ignore)
    (tmp_path / "full").mkdir()
    shutil.copy(archive, tmp_path / "full")
    with pytest.raises(UsageError, match="not an empty directory"):
        replay_archive(archive, tmp_path / "full", on_event=ignore)


def test_archive_that_could_not_be_read_back_is_not_written(
    packed: tuple[RunLayout, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, open_archive, _ = packed
    repo, target = Repo.discover(layout.repo_root), tmp_path / "large.tar"
    monkeypatch.setattr(archive_module, "_shot_files", lambda _: iter([("shots/one.b8", bytes(10**7))]))
    for most, hint in ((open_archive.stat().st_size + 10**7, "--no-shots"), (10_000, "autoqec gc")):
        monkeypatch.setattr(archive_module, "MAX_BYTES", most)
        with pytest.raises(UsageError, match=hint):
            package_run(layout, repo, target)
        assert not target.exists()
