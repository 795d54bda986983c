"""Transactions of refs through a git that stays alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autoqec.system.git import GitError, RefUpdate, Repo, ref_writer
from autoqec.system.git.parsing import PrunedObjectError

PATIENCE_S = 60


def create(repo: Repo, name: str) -> None:
    repo.update_refs([RefUpdate(f"refs/heads/exp/r/{name}", repo.head_sha(), None)])


def process_of(repo: Repo) -> Any:
    return repo._refs._process


def names(repo: Repo) -> list[str]:
    return [ref.rpartition("/")[2] for ref in repo.refs("refs/heads/exp")]


def test_one_git_carries_out_many_transactions(repo: Repo) -> None:
    create(repo, "a")
    first = process_of(repo).pid
    create(repo, "b")
    sha = repo.head_sha()
    with pytest.raises(GitError, match="reference already exists"):
        create(repo, "a")
    assert process_of(repo) is None, "git ends at a refusal"
    create(repo, "c")
    repo.update_refs([RefUpdate("refs/heads/exp/r/a", None, sha), RefUpdate("refs/heads/exp/r/b", None, sha)])
    assert names(repo) == ["c"] and process_of(repo).pid != first


def test_refused_transaction_changes_nothing_and_leaves_no_lock(repo: Repo) -> None:
    sha = repo.head_sha()
    updates = [RefUpdate("refs/heads/exp/r/a", sha, None), RefUpdate("refs/heads/exp/r/b", "1" * 40, None)]
    with pytest.raises(PrunedObjectError, match="nonexistent object"):
        repo.update_refs(updates)
    with pytest.raises(GitError, match="is not a name for a ref"):
        repo.update_refs([RefUpdate("refs/heads/-a", sha, None)])
    assert names(repo) == [] and not [*repo.common.rglob("*.lock.*"), *(repo.common / "refs").rglob("*.lock")]


def test_killed_git_is_replaced(repo: Repo) -> None:
    create(repo, "a")
    os.kill(process_of(repo).pid, signal.SIGKILL)
    create(repo, "b")
    assert names(repo) == ["a", "b"]


class Silent:
    """A git that ends while it carries out a transaction: it has confirmed the first of three steps."""

    def __init__(self) -> None:
        script = "import sys; sys.stdin.buffer.read(5); print('start: ok', flush=True)"
        pipe = subprocess.PIPE
        self.proc = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.proc, name)


def test_git_that_ends_in_a_transaction_is_an_error_and_the_transaction_is_not_repeated() -> None:
    started = list[int]()

    def start(lock: int) -> Silent:
        started.append(lock)
        return Silent()

    writer = ref_writer.RefWriter(start)
    for _ in range(2):
        with pytest.raises(ref_writer.WriterEndedError):
            writer.write([RefUpdate("refs/heads/x", "1" * 40, None)], 7, "origin")
    assert started == [7, 7]


def test_git_is_started_again_for_another_lock_file_and_after_a_minute(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has inherited the old file; and it keeps the time of its first record in a reflog."""
    create(repo, "a")
    pids = [process_of(repo).pid]
    (repo.common / "autoqec.lock").unlink()
    create(repo, "b")
    pids.append(process_of(repo).pid)
    monkeypatch.setattr(ref_writer, "_MAX_AGE_S", 0.0)
    create(repo, "c")
    pids.append(process_of(repo).pid)
    assert len(set(pids)) == 3 and names(repo) == ["a", "b", "c"]


KILLED = """
import os, signal, sys
from autoqec.system.git import RefUpdate, Repo
repo = Repo.discover(sys.argv[1])
sha = repo.head_sha()
repo.update_refs([RefUpdate("refs/heads/exp/r/a", sha, None)])
with repo._lock.hold():
    git = repo._refs._process
    os.kill(git.pid, signal.SIGSTOP)
    git.stdin.write(f"start\\0create refs/heads/exp/r/b\\0{sha}\\0prepare\\0commit\\0".encode())
    git.stdin.flush()
    print(git.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_writer_waits_for_the_git_of_a_killed_one(repo: Repo) -> None:
    """That git finishes its transaction; until then it holds the lock, which it inherited."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(repo.root)], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    git = int(done.stdout)
    try:
        with pytest.raises(GitError, match="holds the repository"), repo._lock.hold(timeout_s=0.1):
            pass
    finally:
        os.kill(git, signal.SIGCONT)
    create(repo, "c")
    assert names(repo) == ["a", "c"] and not [*(repo.common / "refs").rglob("*.lock")]


def test_git_ends_with_its_repository(repo: Repo) -> None:
    other = Repo(repo.root, repo.common)
    create(other, "a")
    pid = process_of(other).pid
    del other
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_commit_in_a_worktree_is_in_the_reflogs_of_branch_and_worktree(repo: Repo) -> None:
    path = repo.root / ".worktrees" / "exp-r-01"
    repo.worktree_add(path, "exp/r/01-x", repo.head_sha())
    (path / "base.txt").write_text("new")
    sha = repo.commit(path, ["base.txt"], "x")
    for log in ("logs/refs/heads/exp/r/01-x", "worktrees/exp-r-01/logs/HEAD"):
        assert (repo.common / log).read_text().splitlines()[-1].split()[1] == sha


def test_commit_on_a_detached_head_moves_no_branch(repo: Repo) -> None:
    path, base = repo.root / ".worktrees" / "exp-r-01", repo.head_sha()
    repo.worktree_add(path, "exp/r/01-x", base)
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=path, check=True)
    (path / "base.txt").write_text("new")
    sha = repo.commit(path, ["base.txt"], "x")
    assert repo.head_sha(path) == sha and repo.refs("refs/heads/exp") == {"refs/heads/exp/r/01-x": base}
