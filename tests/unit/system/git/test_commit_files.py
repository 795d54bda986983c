"""Commits of whole files and new worktrees: what git's own commands would have made, with fewer processes."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import StorageError
from autoqec.system.git import GitError, Repo, checkout, new_objects, new_worktree
from autoqec.system.git.parsing import PrunedObjectError

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
        assert ("write-tree" in calls) == (number == 2)
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
    assert "add" in calls and "write-tree" in calls


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
    assert "add" in calls and "write-tree" in calls
    assert [(found.mode, found.path) for found in repo.ls_tree(sha, "x")] == [("100644", name)]


def test_objects_that_a_prune_removes_after_the_branch_has_moved_are_written_again(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune that began before does not know that they are in use."""
    path = add(repo)
    (path / "base.txt").write_text("new")
    known, write_refs, removed = set(repo.common.glob("objects/*/*")), repo._write_refs, list[str]()

    def pruned(*arguments: Any) -> None:
        write_refs(*arguments)
        for written in sorted(set(repo.common.glob("objects/*/*")) - known):
            removed.append(written.parent.name + written.name)
            written.unlink()

    monkeypatch.setattr(repo, "_write_refs", pruned)
    sha = repo.commit(path, ["base.txt"], "x")
    assert len(removed) == 3 and sha in removed
    assert git(repo.root, "fsck", "--no-dangling") == "" and repo.show_file(sha, "base.txt") == b"new"


def test_objects_of_every_size_are_read_back(repo: Repo) -> None:
    objects, contents = new_objects.NewObjects(), [bytes([n % 251]) * n for n in (0, 1, 15, 16, 2047, 2048, 300_000)]
    names = [objects.add("blob", data) for data in contents]
    assert not objects.are_loose(repo.common / "objects")
    objects.write(repo.common / "objects")
    assert repo.objects(names) == list(zip(names, contents, strict=True))
    assert objects.are_loose(repo.common / "objects") and git(repo.root, "fsck", "--strict", "--no-dangling") == ""


@pytest.mark.parametrize("shared", [False, True])
def test_object_files_have_the_permissions_that_git_gives_them(tmp_path: Path, shared: bool) -> None:
    git(tmp_path, "init", "-q", *(["--shared=group"] if shared else []), ".")
    repo, objects = Repo.discover(tmp_path), new_objects.NewObjects()
    (tmp_path / "a").write_text("by git")
    by_git = git(tmp_path, "hash-object", "-w", "a").strip()
    ours = objects.add("blob", b"by this program")
    objects.write(repo.common / "objects")

    def modes(oid: str) -> list[int]:
        path = repo.common / "objects" / oid[:2] / oid[2:]
        return [path.stat().st_mode, path.parent.stat().st_mode]

    assert ours[:2] != by_git[:2] and modes(ours) == modes(by_git)


def test_object_that_exists_is_kept_and_is_young_again(repo: Repo) -> None:
    """A prune leaves young objects alone."""
    objects = new_objects.NewObjects()
    oid = objects.add("blob", b"known")
    objects.write(repo.common / "objects")
    path = repo.common / "objects" / oid[:2] / oid[2:]
    inode = path.stat().st_ino
    os.utime(path, (1, 1))
    objects.write(repo.common / "objects")
    assert path.stat().st_ino == inode and path.stat().st_mtime > 1e9


def test_object_that_cannot_be_written_is_an_error_and_leaves_nothing(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = add(repo)
    (path / "base.txt").write_text("new")
    before, files = repo.head_sha(path), set(repo.common.glob("objects/*/*"))
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            repo.commit(path, ["base.txt"], "x")
    assert repo.head_sha(path) == before and set(repo.common.glob("objects/*/*")) == files


# ---- worktrees


@pytest.mark.parametrize("linked", [False, True])
def test_new_worktree_is_one_of_git(repo: Repo, calls: list[str], linked: bool) -> None:
    """Files are written here unless there is a symbolic link, or anything else that is not a plain file."""
    (repo.root / "run.sh").write_text("x")
    (repo.root / "run.sh").chmod(0o755)
    for name in ("a-b", "a/b", "a0"):  # in the order of an index
        (repo.root / name).parent.mkdir(exist_ok=True)
        (repo.root / name).write_text(name)
    if linked:
        (repo.root / "link").symlink_to("base.txt")
    repo.commit_all("More kinds")
    calls.clear()
    path = add(repo)
    assert calls == ["rev-parse", *(["read-tree"] if linked else [])]
    calls.clear()
    # A name that git may change, so that git makes it.
    other = repo.root / ".worktrees" / "of.git"
    repo.worktree_add(other, "exp/r/02-x", repo.head_sha())
    assert calls == ["rev-parse", "worktree"]
    assert git(path, "ls-files", "--stage") == git(other, "ls-files", "--stage")
    assert git(path, "diff-files") == "", "the index knows the times of its files"

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
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
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
    assert calls == ["rev-parse", "worktree"]
    assert [found.path for found in repo.worktrees()] == [path] and repo.dirty_paths(worktree=path) == []


def test_incomplete_worktree_is_marked_until_it_is_checked_out(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    write, seen = checkout.write, list[bool]()
    path, admin = repo.root / ".worktrees" / "exp-r-01", repo.common / "worktrees" / "exp-r-01"

    def looking(*arguments: Any) -> None:
        git(repo.root, "worktree", "prune", "--expire=now")
        seen.append((admin / new_worktree.LOCKED).exists() and (path / ".git").exists())
        write(*arguments)

    monkeypatch.setattr(checkout, "write", looking)
    add(repo)
    assert seen == [True] and not (admin / new_worktree.LOCKED).exists()


@pytest.mark.parametrize("other", ["names", "attributes", "case"])
def test_commit_that_may_need_conversion_is_checked_out_by_git(repo: Repo, calls: list[str], other: str) -> None:
    if other == "names":
        (repo.root / "ä b").write_text("x")
    elif other == "case":
        (repo.root / "Base.txt").write_text("x")
    else:
        (repo.root / ".gitattributes").write_text("*.txt eol=crlf\n")
    repo.commit_all("Others")
    calls.clear()
    path = add(repo)
    assert calls == ["rev-parse", "read-tree"] and repo.dirty_paths(worktree=path) == []
    assert (b"\r\n" in (path / "base.txt").read_bytes()) == (other == "attributes")


def test_attributes_of_the_repository_apply_to_a_checkout(repo: Repo) -> None:
    (repo.common / "info").mkdir(exist_ok=True)
    (repo.common / "info" / "attributes").write_text("*.txt eol=crlf\n")
    assert b"\r\n" in (add(repo) / "base.txt").read_bytes()


# ---- worktrees with a first commit


FILES = {"modules/a.py": b"new = 1\n", "modules/deep/b.py": b"b = 2\n"}


def test_worktree_with_a_commit_is_that_of_the_single_steps(repo: Repo, calls: list[str]) -> None:
    first, base = add(repo), repo.head_sha()
    for name, data in FILES.items():
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_bytes(data)
    expected = repo.commit_info(repo.commit(first, [*FILES], "Both", {"Attempt": "a"}))
    calls.clear()
    second = repo.root / ".worktrees" / "exp-r-02"
    sha = repo.worktree_add_commit(second, "exp/r/02-x", base, FILES, "Both", {"Attempt": "a"})
    assert calls == [] and sha is not None
    found = repo.commit_info(sha)
    assert (found.tree, found.parents, found.message) == (expected.tree, expected.parents, expected.message)
    assert repo.head_sha(second) == sha and git(second, "status", "--porcelain", "--branch") == "## exp/r/02-x\n"
    assert {name: (second / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("files", [{"base.txt": b"\r"}, {"base.txt/x": b"x"}, {"ä": b"x"}])
def test_worktree_with_a_commit_that_git_has_to_make_is_left_to_it(repo: Repo, files: dict[str, bytes]) -> None:
    path, known = repo.root / ".worktrees" / "exp-r-01", set(repo.common.glob("objects/*/*"))
    assert repo.worktree_add_commit(path, BRANCH, repo.head_sha(), files, "x") is None
    assert not path.exists() and repo.refs("refs/heads/exp") == {}
    assert set(repo.common.glob("objects/*/*")) == known


@pytest.mark.parametrize("times", [1, 2])
def test_commit_of_a_new_worktree_is_written_once_more_after_a_prune(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    known, write, left = set(repo.common.glob("objects/*/*")), new_objects.NewObjects.write, [times]

    def pruned(objects: new_objects.NewObjects, directory: Path) -> None:
        write(objects, directory)
        if left[0]:
            left[0] -= 1
            for written in set(repo.common.glob("objects/*/*")) - known:
                written.unlink()

    monkeypatch.setattr(new_objects.NewObjects, "write", pruned)
    path = repo.root / ".worktrees" / "exp-r-01"
    if times == 2:
        with pytest.raises(PrunedObjectError):
            repo.worktree_add_commit(path, BRANCH, repo.head_sha(), FILES, "x")
        assert not path.exists() and repo.refs("refs/heads/exp") == {}
        return
    sha = repo.worktree_add_commit(path, BRANCH, repo.head_sha(), FILES, "x")
    assert repo.head_sha(path) == sha and git(repo.root, "fsck", "--no-dangling") == ""
