"""What git's messages mean for the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoqec.errors import StorageError
from autoqec.system.git import GitError, RefUpdate, Repo
from autoqec.system.git.errors import PrunedObjectError, git_error
from tests.support.repositories import git


def test_blocking_lock_is_named_with_a_hint(repo: Repo) -> None:
    sha, ref = repo.head_sha(), "refs/heads/exp/r/01-x"
    repo.update_refs([RefUpdate(ref, sha, None)])
    lock = repo.common / f"{ref}.lock"
    lock.write_text("")
    with pytest.raises(GitError, match="another git holds a lock file") as error:
        repo.update_refs([RefUpdate(ref, None, sha)])
    assert (
        error.value.location == str(lock) and error.value.hint == f"wait for that git; if none is running: rm '{lock}'"
    )


def test_damaged_object_is_named_with_a_hint(repo: Repo) -> None:
    sha = repo.head_sha()
    path = repo.common / "objects" / sha[:2] / sha[2:]
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    with pytest.raises(GitError, match=f"object {sha} is damaged") as error:
        repo.commit_info(sha)
    assert error.value.location == str(repo.common / "objects")
    assert error.value.hint is not None and "git fsck --full" in error.value.hint


def test_branch_in_the_way_of_a_new_one_is_named_with_a_hint(repo: Repo) -> None:
    git(repo.root, "branch", "quarantine")
    with pytest.raises(GitError, match="the branch `quarantine` exists") as error:
        repo.update_refs([RefUpdate("refs/heads/quarantine/r/01-x", repo.head_sha(), None)])
    assert error.value.hint == "git branch -m quarantine quarantine-old"


@pytest.mark.parametrize(
    ("err", "kind"),
    [
        ("fatal: write error: No space left on device", StorageError),
        ("error: reset died of signal 25", StorageError),
        ("fatal: Unable to create temporary file: Permission denied", StorageError),
        ("fatal: bad revision", GitError),
    ],
)
def test_storage_failures_of_git_are_storage_errors(repo: Repo, err: str, kind: type[Exception]) -> None:
    error = git_error(["add"], err, repo.common)
    assert type(error) is kind and str(error).count("\n") == 0
    assert kind is GitError or (error.hint and error.exit_code == 74)


def test_full_disk_that_git_does_not_report_is_detected_by_writing(tmp_path: Path) -> None:
    error = git_error(["add"], "fatal: couldn't write 'x'", tmp_path / "missing")
    assert type(error) is StorageError and "No such file or directory" in str(error)


def test_full_disk_is_a_storage_error(repo: Repo) -> None:
    # Files no larger than 40 bytes: git's own writes fail.
    code = (
        "import resource, signal, sys\n"
        "from autoqec.system.git import Repo\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "repo = Repo.discover(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "repo.commit_all('x')\n"
    )
    (repo.root / "big").write_bytes(os.urandom(100_000))
    ended = subprocess.run([sys.executable, "-c", code, str(repo.root)], capture_output=True, text=True)
    assert ended.returncode == 1 and ("GitError" in ended.stderr or "StorageError" in ended.stderr)
    assert git(repo.root, "fsck", "--no-dangling") == "" and issubclass(StorageError, Exception)


def test_object_that_a_prune_removes_while_a_tree_is_written_gets_a_hint(repo: Repo) -> None:
    path = repo.root / "new.txt"
    path.write_text("an object that nothing refers to yet")
    subprocess.run(["git", "add", "new.txt"], cwd=repo.root, check=True)
    oid = subprocess.check_output(["git", "hash-object", "new.txt"], cwd=repo.root, text=True).strip()
    (repo.common / "objects" / oid[:2] / oid[2:]).unlink()
    done = subprocess.run(["git", "write-tree"], cwd=repo.root, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    error = git_error(["write-tree"], done.stderr, repo.common)
    assert isinstance(error, PrunedObjectError)
    assert "git prune" in (error.hint or "")
