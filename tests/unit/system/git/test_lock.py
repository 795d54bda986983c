"""The lock of a repository, and lock files of git that a dead writer left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoqec.errors import StorageError
from autoqec.system.git import GitError, RefUpdate, Repo
from autoqec.system.git.lock import repository_lock
from tests.support.repositories import branch, git, grow

LOCK_PLACES = [
    "refs/heads/exp/top.lock",
    "logs/refs/autoqec/r/a.lock",
    "reftable/tables.list.lock",
    "worktrees/exp-r-01/reftable/0x1.ref.lock",
    "packed-refs.lock",
    "refs/heads/exp/r/01-x.lock",
    "worktrees/exp-r-01/index.lock",
]


DIE = """
import os, sys
from pathlib import Path
from autoqec.system.git.lock import repository_lock
common = Path(sys.argv[1])
with repository_lock(common):
    for place in sys.argv[2:]:
        (common / place).parent.mkdir(parents=True, exist_ok=True)
        (common / place).touch()
    os._exit(1)
"""


def leave_locks(repo: Repo) -> None:
    """Start a writer that dies and leaves each of the lock files."""
    ended = subprocess.run([sys.executable, "-c", DIE, str(repo.common), *LOCK_PLACES])
    assert ended.returncode == 1


def remaining_locks(repo: Repo) -> list[str]:
    return [place for place in LOCK_PLACES if (repo.common / place).exists()]


def test_locks_of_a_killed_git_are_removed_by_the_next_writer(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    (repo.common / "index.lock").write_text("the user's")
    leave_locks(repo)
    assert remaining_locks(repo) == LOCK_PLACES
    (worktree / "base.txt").write_text("y")
    repo.commit(worktree, branch(1), ["base.txt"], "again")
    repo.update_refs([RefUpdate("refs/heads/exp/r/09-x", sha, None)])
    assert remaining_locks(repo) == []
    assert (repo.common / "index.lock").exists()
    assert (repo.common / "autoqec.lock").read_bytes() == b""


def test_locks_are_kept_if_no_writer_died_or_a_process_has_them_open(repo: Repo) -> None:
    lock = repo.common / "packed-refs.lock"
    lock.write_text("a running git's")
    repo.repair()
    assert lock.exists()
    grow(repo, 1, base="x")
    leave_locks(repo)
    with open(lock):
        repo.repair()
        assert remaining_locks(repo) == ["packed-refs.lock"]


@pytest.mark.parametrize("foreign", ["host", "boot", "pid_namespace", "uid"])
def test_locks_are_kept_if_the_state_of_their_writer_is_unknown(repo: Repo, foreign: str) -> None:
    grow(repo, 1, base="x")
    leave_locks(repo)
    record = repo.common / "autoqec.lock"
    times = record.stat()
    record.write_text(json.dumps(json.loads(record.read_text()) | {foreign: "another"}))
    os.utime(record, ns=(times.st_atime_ns, times.st_mtime_ns))
    repo.repair()
    assert remaining_locks(repo) == LOCK_PLACES


def test_locks_that_are_older_than_the_dead_writer_are_kept(repo: Repo) -> None:
    grow(repo, 1, base="x")
    leave_locks(repo)
    os.utime(repo.common / "packed-refs.lock", (1, 1))
    repo.repair()
    assert remaining_locks(repo) == ["packed-refs.lock"]


def test_lock_of_another_user_is_kept(repo: Repo) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file to another user; to install: nothing, run the tests as root")
    grow(repo, 1, base="x")
    leave_locks(repo)
    os.chown(repo.common / "packed-refs.lock", 4242, 4242)
    repo.repair()
    assert remaining_locks(repo) == ["packed-refs.lock"]


def test_failed_call_does_not_mark_its_writer_as_dead(repo: Repo) -> None:
    with pytest.raises(GitError):
        repo.update_refs([RefUpdate("refs/heads/main", None, "1" * 40)])
    repo.repair()
    assert (repo.common / "autoqec.lock").read_bytes() == b""


def test_writers_are_serialized(repo: Repo) -> None:
    with (
        repository_lock(repo.common),
        pytest.raises(GitError, match="holds"),
        repository_lock(repo.common, timeout_s=0.05),
    ):
        pass
    with repository_lock(repo.common, timeout_s=0.05):
        pass


SURVIVED = """
import os, subprocess, sys
from pathlib import Path
from autoqec.system.git.lock import repository_lock
with repository_lock(Path(sys.argv[1])) as lock:
    print(subprocess.Popen(["sleep", "600"], pass_fds=[lock], stdout=subprocess.DEVNULL).pid, flush=True)
    os._exit(1)
"""


def test_git_process_that_survives_its_parent_keeps_the_lock(repo: Repo) -> None:
    argv = [sys.executable, "-c", SURVIVED, str(repo.common)]
    survivor = int(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False).stdout)
    try:
        with pytest.raises(GitError), repository_lock(repo.common, timeout_s=0.05):
            pass
    finally:
        os.kill(survivor, signal.SIGKILL)
    repo.repair()


def test_threads_exclude_each_other(repo: Repo) -> None:
    errors = list[GitError]()

    def wait() -> None:
        try:
            with repository_lock(repo.common, timeout_s=0.05):
                pass
        except GitError as error:
            errors.append(error)

    with repository_lock(repo.common):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert [str(error.location) for error in errors] == [str(repo.common / "autoqec.lock")]


def test_lock_file_that_cannot_be_written_is_a_storage_error(repo: Repo) -> None:
    (repo.common / "autoqec.lock").unlink()
    (repo.common / "autoqec.lock").mkdir()
    with pytest.raises(StorageError, match="autoqec.lock"):
        repo.repair()


def test_lock_file_of_a_shared_repository_can_be_written_by_its_group(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--shared=group", ".")
    repo = Repo.discover(tmp_path)
    repo.repair()
    assert (repo.common / "autoqec.lock").stat().st_mode & 0o777 == 0o664
