"""Commits of whole files and new worktrees: what git's own commands would have made, with fewer processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import StorageError
from autoqec.system.git import GitError, Repo, new_objects, new_worktree

BRANCH = "exp/r/01-x"


def git(root: Path, *arguments: str) -> str:
    name = ["-c", "user.name=u", "-c", "user.email=u@x"]
    return subprocess.run(["git", *name, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def add(repo: Repo, number: int = 1) -> Path:
    path = repo.root / ".worktrees" / f"exp-r-{number:02d}"
    repo.worktree_add(path, f"exp/r/{number:02d}-x", repo.head_sha())
    return path


@pytest.fixture
def calls(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the commands of git that were run."""
    run, found = repo._run, list[str]()

    def counted(arguments: Sequence[str], **more: Any) -> tuple[int, bytes, str]:
        found.append(arguments[0])
        return run(arguments, **more)

    monkeypatch.setattr(repo, "_run", counted)
    return found


# ---- commits


def test_commit_of_files_is_that_of_git(repo: Repo, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In new and known directories; names are sorted as git does, directories as if they ended in `/`."""
    names = [
        "base.txt",
        "modules/a.py",
        "modules/deep/er/b.py",
        "modules-x/c.py",
        "modules.py",
        "new",
        "modules/i.json",
    ]
    trees = []
    for number in (1, 2):
        if number == 2:
            monkeypatch.setattr(new_objects, "_MAX_BYTES", -1)  # leaves all files to git
        path = add(repo, number)
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(f"{name} is new, and so is this text\n")
        (path / "stray.txt").write_text("left out")
        git(path, "add", "stray.txt")
        calls.clear()
        commit = repo.commit_info(repo.commit(path, names, "All", {"Attempt": "é"}))
        trees.append(commit.tree)
        assert ("unpack-objects" in calls) == (number == 1)
        assert commit.parents == (repo.head_sha(),) and commit.message == "All\n\nAttempt: é\n"
        people = git(repo.root, "show", "-s", "--format=%an %ae %cn %ce", commit.sha).strip()
        assert people == "AutoQEC autoqec@localhost AutoQEC autoqec@localhost"
        age = int(git(repo.root, "show", "-s", "--format=%ct", commit.sha)) - (path / "new").stat().st_mtime
        assert abs(age) < 600
        assert repo.head_sha(path) == commit.sha and repo.dirty_paths(worktree=path) == ["stray.txt"]
    assert trees[0] == trees[1]
    assert git(repo.root, "fsck", "--strict", "--no-dangling") == ""


def executable(path: Path) -> None:
    path.chmod(0o755)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("base.txt")


def absent(path: Path) -> None:
    path.unlink()


OTHERS: dict[str, Callable[[Path], object]] = {
    "executable": executable,
    "link": link,
    "deleted": absent,
    "line ends": lambda path: path.write_bytes(b"a\r\nb\n"),
    "keyword": lambda path: path.write_text("$Id$\n"),
    "large": lambda path: path.write_bytes(bytes(2**20 + 1)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_left_to_git(repo: Repo, calls: list[str], kind: str) -> None:
    git(repo.root, "config", "core.autocrlf", "false")
    (repo.root / ".gitattributes").write_text("* text=auto ident\n")
    repo.commit_all("Attributes")
    path = add(repo)
    OTHERS[kind](path / "base.txt")
    calls.clear()
    sha = repo.commit(path, ["base.txt"], "x")
    assert calls[:4] == ["rev-parse", "read-tree", "add", "write-tree"]
    assert repo.dirty_paths(worktree=path) == [] and repo.head_sha(path) == sha
    if kind == "line ends":
        assert repo.show_file(sha, "base.txt") == b"a\nb\n"


def test_file_behind_a_link_is_refused(repo: Repo, tmp_path: Path) -> None:
    path = add(repo)
    before = repo.head_sha(path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (path / "round_1").symlink_to(tmp_path / "outside")
    with pytest.raises(GitError, match="beyond a symbolic link"):
        repo.commit(path, ["round_1/secret"], "x")
    assert repo.head_sha(path) == before


def test_file_of_an_inner_repository_is_left_to_git(repo: Repo, calls: list[str]) -> None:
    path = add(repo)
    git(repo.root, "init", "-q", str(path / "inner"))
    (path / "inner" / "f").write_text("x")
    calls.clear()
    repo.commit(path, ["inner/f"], "x")
    assert "add" in calls and "unpack-objects" not in calls


@pytest.mark.parametrize("entry", ["link", "directory", "executable", "file above"])
def test_entry_of_another_kind_is_replaced_by_git(repo: Repo, calls: list[str], entry: str) -> None:
    if entry == "link":
        (repo.root / "x").symlink_to("base.txt")
    elif entry == "directory":
        (repo.root / "x").mkdir()
        (repo.root / "x" / "y").write_text("y")
    else:
        (repo.root / "x").write_text("x")
        (repo.root / "x").chmod(0o755)
    repo.commit_all("Entry")
    path, name = add(repo), "x/z" if entry == "file above" else "x"
    subprocess.run(["rm", "-r", str(path / "x")], check=True)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("new")
    calls.clear()
    sha = repo.commit(path, [name], "x")
    assert "add" in calls and "unpack-objects" not in calls
    assert [(found.mode, found.path) for found in repo.ls_tree(sha, "x")] == [("100644", name)]


def test_objects_that_a_prune_removes_after_the_branch_has_moved_are_written_again(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune that began before does not know that they are in use."""
    path = add(repo)
    (path / "base.txt").write_text("new")
    known, run, removed = set(repo.common.glob("objects/*/*")), repo._run, list[str]()

    def pruned(arguments: Sequence[str], **more: Any) -> tuple[int, bytes, str]:
        done = run(arguments, **more)
        if arguments[0] == "update-ref" and not removed:
            for written in sorted(set(repo.common.glob("objects/*/*")) - known):
                removed.append(written.parent.name + written.name)
                written.unlink()
        return done

    monkeypatch.setattr(repo, "_run", pruned)
    sha = repo.commit(path, ["base.txt"], "x")
    assert len(removed) == 3 and sha in removed
    assert git(repo.root, "fsck", "--no-dangling") == "" and repo.show_file(sha, "base.txt") == b"new"


def test_objects_of_every_size_are_read_back(repo: Repo) -> None:
    """The size takes 4 bits in the first byte of an entry and 7 in each further one."""
    objects, contents = new_objects.NewObjects(), [bytes([n % 251]) * n for n in (0, 1, 15, 16, 2047, 2048, 300_000)]
    names = [objects.add("blob", data) for data in contents]
    assert not objects.are_loose(repo.common / "objects")
    repo._git("unpack-objects", "-q", stdin=objects.pack())
    assert repo.objects(names) == list(zip(names, contents, strict=True))
    assert objects.are_loose(repo.common / "objects")


# ---- worktrees


def test_new_worktree_is_one_of_git(repo: Repo, calls: list[str]) -> None:
    (repo.root / "run.sh").write_text("x")
    (repo.root / "run.sh").chmod(0o755)
    (repo.root / "link").symlink_to("base.txt")
    repo.commit_all("More kinds")
    calls.clear()
    path = add(repo)
    assert calls == ["rev-parse", "update-ref", "read-tree"]
    calls.clear()
    # A name that git may change, so that git makes it.
    other = repo.root / ".worktrees" / "of.git"
    repo.worktree_add(other, "exp/r/02-x", repo.head_sha())
    assert calls == ["rev-parse", "update-ref", "worktree"]

    def described(root: Path) -> dict[str, Any]:
        files = [found for found in root.rglob("*") if found.name != ".git"]
        return {
            str(found.relative_to(root)): (os.lstat(found).st_mode, found.read_bytes() if found.is_file() else None)
            for found in files
        }

    assert described(path) == described(other)
    for worktree, number in ((path, 1), (other, 2)):
        assert git(worktree, "status", "--porcelain", "--branch") == f"## exp/r/0{number}-x\n"
        assert git(worktree, "rev-parse", "HEAD").strip() == repo.head_sha()
        assert git(worktree, "rev-parse", "--show-toplevel").strip() == str(worktree)
    listed = git(repo.root, "worktree", "list", "--porcelain").split("\n\n")
    head = repo.head_sha()
    assert f"worktree {path}\nHEAD {head}\nbranch refs/heads/{BRANCH}" in listed
    (record,) = (repo.common / "worktrees").glob("exp-r-01")
    assert {found.name for found in record.iterdir()} == {"HEAD", "commondir", "gitdir", "index"}
    git(repo.root, "worktree", "prune")
    assert git(repo.root, "fsck", "--no-dangling") == "" and len(repo.worktrees()) == 2
    (path / "base.txt").write_text("by the user")
    git(path, "commit", "-qam", "by the user")
    git(repo.root, "worktree", "remove", str(path))
    assert [found.path for found in repo.worktrees()] == [other]


def test_failed_checkout_leaves_no_worktree(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git = repo._git

    def failing(*arguments: str, **more: Any) -> bytes:
        if arguments[0] == "read-tree":
            raise StorageError("git read-tree: No space left on device")
        return run_git(*arguments, **more)

    with monkeypatch.context() as full_disk:
        full_disk.setattr(repo, "_git", failing)
        with pytest.raises(StorageError):
            add(repo)
    assert repo.worktrees() == [] and not (repo.root / ".worktrees" / "exp-r-01").exists()
    assert not (repo.common / "worktrees" / "exp-r-01").exists()


@pytest.mark.parametrize("taken", ["record", "directory", "settings"])
def test_worktree_whose_place_is_taken_is_left_to_git(repo: Repo, calls: list[str], taken: str) -> None:
    path = repo.root / ".worktrees" / "exp-r-01"
    if taken == "record":
        (repo.common / "worktrees" / "exp-r-01").mkdir(parents=True)
    elif taken == "directory":
        path.mkdir(parents=True)
    else:
        (repo.common / "config.worktree").write_text("")
    calls.clear()
    repo.worktree_add(path, BRANCH, repo.head_sha())
    assert calls == ["rev-parse", "update-ref", "worktree"]
    assert [found.path for found in repo.worktrees()] == [path] and repo.dirty_paths(worktree=path) == []


def test_incomplete_worktree_is_marked_until_it_is_checked_out(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git, seen = repo._git, list[bool]()
    path, admin = repo.root / ".worktrees" / "exp-r-01", repo.common / "worktrees" / "exp-r-01"

    def looking(*arguments: str, **more: Any) -> bytes:
        if arguments[0] == "read-tree":
            git(repo.root, "worktree", "prune", "--expire=now")
            seen.append((admin / new_worktree.LOCKED).exists() and (path / ".git").exists())
        return run_git(*arguments, **more)

    monkeypatch.setattr(repo, "_git", looking)
    add(repo)
    assert seen == [True] and not (admin / new_worktree.LOCKED).exists()
