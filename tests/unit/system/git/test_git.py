"""The git interface: real repositories, hostile settings, concurrent writers."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import StorageError, UsageError
from autoqec.system.git import GitError, MergeConflictError, RefUpdate, Repo, lock, new_objects
from autoqec.system.git import read as git_reader
from autoqec.system.git.lock import RepositoryLock
from autoqec.system.git.parsing import PrunedObjectError
from autoqec.system.git.read import git_error

BRANCH = "exp/20260101-000000/01-wider"


def git(root: Path, *arguments: str) -> str:
    """Run the user's git, with an identity."""
    name = ["-c", "user.name=u", "-c", "user.email=u@x", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *name, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def grow(repo: Repo, number: int, **files: str) -> tuple[Path, str]:
    """Add a worktree on a new branch of HEAD with one commit; return its path and sha."""
    path = repo.root / ".worktrees" / f"exp-r-{number:02d}"
    repo.worktree_add(path, f"exp/r/{number:02d}-x", repo.head_sha())
    for name, text in files.items():
        (path / f"{name}.txt").write_text(text)
    return path, repo.commit(path, [f"{name}.txt" for name in files], f"round {number}")


def quarantine(repo: Repo, sha: str) -> None:
    """Rename the branch of `grow(repo, 1)` if it is at `sha`."""
    new, old = "refs/heads/quarantine/r/01-x", "refs/heads/exp/r/01-x"
    repo.update_refs([RefUpdate(new, sha, None), RefUpdate(old, None, sha)])


# ---- discovery


def test_discover_finds_the_main_work_tree_from_anywhere(repo: Repo) -> None:
    worktree, _ = grow(repo, 1, base="x")
    for place in (repo.root, repo.root / "modules", worktree, worktree / "modules"):
        found = Repo.discover(place)
        assert (found.root, found.common) == (repo.root, repo.common)


def test_discover_names_what_is_missing(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="autoqec init"):
            Repo.discover(place)
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    with pytest.raises(UsageError):
        Repo.discover(tmp_path / "bare.git")
    git(tmp_path, "init", "-q", "--object-format=sha256", "long")
    with pytest.raises(UsageError, match="sha256"):
        Repo.discover(tmp_path / "long")


@pytest.mark.parametrize(("path", "message"), [(None, "git cannot be started"), ("/nowhere", "git is not installed")])
def test_git_that_cannot_be_started_is_told_from_a_missing_one(tmp_path: Path, path: str | None, message: str) -> None:
    """For example under a low limit on open files."""
    code = f"""
import subprocess
from autoqec.errors import UsageError
from autoqec.system.git import Repo
def start(*arguments, **more):
    raise OSError(24, "Too many open files")
if {path!r} is None:
    subprocess.Popen.__init__ = start
try:
    Repo.discover({str(tmp_path)!r})
except UsageError as error:
    print(error.message)
"""
    env = os.environ | ({} if path is None else {"PATH": path})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == message, done.stderr


def test_discover_ignores_git_environment_variables(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    found = Repo.discover(repo.root)
    assert found.root == repo.root and found.head_sha() == repo.head_sha()


def test_repository_without_commits_is_refused(tmp_path: Path) -> None:
    repo = Repo.init(tmp_path)
    assert repo.rev_parse("HEAD") is None and repo.head_ref() == "main"
    with pytest.raises(UsageError, match="no commit"):
        repo.head_sha()


def test_works_without_any_identity(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EMAIL", raising=False)
    _, sha = grow(repo, 1, base="x")
    assert git(repo.root, "show", "-s", "--format=%an <%ae> %cn", sha).strip() == "AutoQEC <autoqec@localhost> AutoQEC"


# ---- reading


def test_heads_and_revisions(repo: Repo) -> None:
    sha = repo.head_sha()
    assert repo.head_ref() == "main" and repo.rev_parse("main") == sha
    assert repo.rev_parse("nothing") is None and repo.rev_parse("--all") is None
    git(repo.root, "checkout", "-q", "--detach")
    assert repo.head_ref() is None and repo.head_sha() == sha


def test_refs_below_a_prefix(repo: Repo) -> None:
    _, sha = grow(repo, 1, base="x")
    assert repo.refs("refs/heads/exp") == {"refs/heads/exp/r/01-x": sha}
    assert repo.refs("refs/heads/exp/r/") == {"refs/heads/exp/r/01-x": sha}
    assert repo.refs("refs/heads/ex") == {}


def test_files_of_a_commit(repo: Repo) -> None:
    (repo.root / "link").symlink_to("base.txt")
    sha = repo.commit_all("A link")
    assert repo.show_file(sha, "modules/a.py") == b"a = 1\n"
    assert repo.show_file(sha, "modules") is None
    assert repo.show_file(sha, "nothing") is None
    assert repo.show_file(sha, "link") is None
    assert {entry.path: entry.mode for entry in repo.ls_tree(sha)}["link"] == "120000"
    with pytest.raises(GitError, match="larger"):
        repo.show_file(sha, "base.txt", max_bytes=3)


def test_diff_shows_every_kind_of_change(repo: Repo) -> None:
    base = repo.head_sha()
    root = repo.root
    (root / "base.txt").rename(root / "moved ü.txt")
    (root / "modules" / "a.py").unlink()
    (root / "modules" / "a.py").symlink_to("/etc/passwd")
    (root / "run.sh").write_text("x")
    (root / "run.sh").chmod(0o755)
    git(root, "init", "-q", "inner")
    git(root / "inner", "commit", "-q", "--allow-empty", "-m", "x")
    tip = repo.commit_all("Everything")
    found = {entry.path: (entry.status, entry.new_mode) for entry in repo.diff_entries(base, tip)}
    assert found == {
        "base.txt": ("D", "000000"),
        "moved ü.txt": ("A", "100644"),
        "modules/a.py": ("T", "120000"),
        "run.sh": ("A", "100755"),
        "inner": ("A", "160000"),
    }


def test_dirty_paths(repo: Repo) -> None:
    assert repo.dirty_paths() == []
    (repo.root / "base.txt").write_text("x")
    (repo.root / "modules" / "new.py").write_text("x")
    (repo.root / "modules" / "ignored.json").write_text("x")
    assert repo.dirty_paths() == ["base.txt", "modules/new.py"]
    assert repo.dirty_paths("modules") == ["modules/new.py"]
    assert repo.dirty_paths(["modules", "base.txt"]) == ["base.txt", "modules/new.py"]


# ---- commits


def test_commit_holds_exactly_the_named_paths(repo: Repo) -> None:
    worktree = repo.root / ".worktrees" / "exp-r-01"
    repo.worktree_add(worktree, BRANCH, repo.head_sha())
    (worktree / "modules" / "a.py").write_text("a = 2\n")
    (worktree / "modules" / "ignored.json").write_text("{}")
    (worktree / "base.txt").write_text("left out")
    (worktree / "stray.txt").write_text("left out")
    git(worktree, "add", "stray.txt")
    base, sha = repo.head_sha(), repo.commit(worktree, ["modules"], "Wider", {"Attempt": "id-1"})
    assert [entry.path for entry in repo.diff_entries(base, sha)] == ["modules/a.py", "modules/ignored.json"]
    assert repo.refs("refs/heads/exp")[f"refs/heads/{BRANCH}"] == sha
    assert repo.commit_info(sha).parents == (base,)
    assert repo.commit_info(sha).trailers == {"Attempt": "id-1"}
    assert repo.dirty_paths(worktree=worktree) == ["base.txt", "stray.txt"]
    assert repo.head_sha() == base and repo.dirty_paths() == []


@pytest.mark.parametrize("refresh_index", [False, True])
def test_known_head_saves_calls_and_a_wrong_one_changes_nothing(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, refresh_index: bool
) -> None:
    path, first = grow(repo, 1, base="x")
    run, calls = repo._run, list[str]()

    def counted(arguments: Sequence[str], **more: Any) -> tuple[int, bytes, str]:
        calls.append(arguments[0])
        return run(arguments, **more)

    monkeypatch.setattr(repo, "_run", counted)
    (path / "a.txt").write_text("a")
    second = repo.commit(path, ["a.txt"], "Second", head=first, refresh_index=refresh_index)
    assert calls == (["read-tree"] if refresh_index else [])
    assert git(path, "diff", "--cached", "--name-only") == ("" if refresh_index else "a.txt\n")
    calls.clear()
    (path / "b.txt").write_text("b\r")  # git may convert it
    third = repo.commit(path, ["b.txt"], "Third", head=first, refresh_index=refresh_index)
    made = ["read-tree", "add", "write-tree", "commit-tree"]
    assert calls == [*made, "rev-parse", "rev-parse", *made]
    monkeypatch.undo()
    assert repo.commit_info(second).parents == (first,) and repo.commit_info(third).parents == (second,)
    assert [(entry.status, entry.path) for entry in repo.diff_entries(first, third)] == [("A", "a.txt"), ("A", "b.txt")]
    assert repo.dirty_paths(worktree=path) == [], "the index is that of the commit"


def test_commit_to_a_deleted_branch_with_a_known_head_is_refused(repo: Repo) -> None:
    path, first = grow(repo, 1, base="x")
    git(path, "update-ref", "-d", "HEAD")
    with pytest.raises(UsageError, match="has no commit yet"):
        repo.commit(path, ["base.txt"], "Lost", head=first)


def test_deletion_is_committed(repo: Repo) -> None:
    worktree = repo.root / ".worktrees" / "exp-r-01"
    repo.worktree_add(worktree, BRANCH, repo.head_sha())
    (worktree / "modules" / "a.py").unlink()
    sha = repo.commit(worktree, ["modules"], "Gone")
    assert [(entry.status, entry.path) for entry in repo.diff_entries(repo.head_sha(), sha)] == [("D", "modules/a.py")]


def test_generated_text_cannot_forge_a_trailer(repo: Repo) -> None:
    worktree, _ = grow(repo, 1, base="x")
    sha = repo.commit(worktree, ["base.txt"], "Fine\n\nAttempt: forged", {"Attempt": "true\nOther: forged"})
    assert repo.commit_info(sha).trailers == {"Attempt": "true Other: forged"}
    assert repo.commit_info(repo.commit(worktree, ["base.txt"], "-m\0\n#x")).trailers == {}


def test_paths_are_not_interpreted_as_patterns(repo: Repo) -> None:
    worktree, _ = grow(repo, 1, base="x")
    (worktree / "*.txt").write_text("star")
    (worktree / "other.txt").write_text("other")
    sha = repo.commit(worktree, ["*.txt"], "Star")
    assert [entry.path for entry in repo.diff_entries(repo.commit_info(sha).parents[0], sha)] == ["*.txt"]
    for path in ("../../base.txt", "no such file", str(worktree / "base.txt"), ".git/config"):
        with pytest.raises(GitError):
            repo.commit(worktree, [path], "x")


# ---- refs


def test_refs_change_together_or_not_at_all(repo: Repo) -> None:
    sha = repo.head_sha()
    good = RefUpdate("refs/heads/exp/r/01-x", sha, None)
    with pytest.raises(GitError):
        repo.update_refs([good, RefUpdate("refs/heads/main", sha, "1" * 40)])
    assert repo.refs("refs/heads/exp") == {}
    repo.update_refs([good, RefUpdate("refs/autoqec/pin/r/id", sha, None)])
    with pytest.raises(GitError):
        repo.update_refs([good])
    with pytest.raises(GitError):
        repo.update_refs([RefUpdate(good.ref, None, "1" * 40)])
    repo.update_refs([RefUpdate(good.ref, None, sha)])
    assert repo.refs("refs/autoqec") == {"refs/autoqec/pin/r/id": sha} and repo.refs("refs/heads/exp") == {}


def test_lock_file_that_git_cannot_remove_is_an_error_and_removed_next(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git reports success when unlink fails on a faulty disk; the test leaves the file as that git does."""
    sha = repo.rev_parse("main") or ""
    lock_file = repo.common / "refs/heads/exp/r/01-x.lock"
    write_refs = repo._write_refs

    def leaving_the_lock(*arguments: Any) -> None:
        write_refs(*arguments)
        lock_file.touch()

    with monkeypatch.context() as faulty_disk:
        faulty_disk.setattr(repo, "_write_refs", leaving_the_lock)
        with pytest.raises(StorageError, match="could not remove its lock file"):
            repo.update_refs([RefUpdate("refs/heads/exp/r/01-x", sha, None)])
    assert lock_file.exists()
    repo.update_refs([RefUpdate("refs/heads/exp/r/01-x", None, sha)])
    assert not lock_file.exists() and repo.rev_parse("exp/r/01-x") is None


def test_rename_keeps_the_commit_and_removes_the_old_name(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    repo.worktree_remove(worktree)
    with pytest.raises(GitError):
        quarantine(repo, repo.head_sha())
    quarantine(repo, sha)
    assert repo.refs("refs/heads") == {"refs/heads/main": repo.head_sha(), "refs/heads/quarantine/r/01-x": sha}


# ---- worktrees


def test_worktree_is_found_by_the_name_of_its_record_or_else_of_its_directory(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both directories are called `x`, so that git calls the second record `x1`; others are not read."""
    first, second = repo.root / ".worktrees" / "x", repo.root / "elsewhere" / "x"
    for number, path in enumerate((first, second, repo.root / ".worktrees" / "y")):
        repo.worktree_add(path, f"exp/r/{number}", repo.head_sha())
    heads, read = list[str](), git_reader._read

    def reading(path: Path) -> str:
        heads.extend([path.parent.name] if path.name == "HEAD" else [])
        return read(path)

    monkeypatch.setattr(git_reader, "_read", reading)
    assert [repo._admin(path).name for path in (first, second)] == ["x", "x1"]
    assert heads == ["x", "x", "x", "x1"]
    repo.worktree_remove(second)
    assert {found.admin.name for found in repo.worktrees()} == {"x", "y"} and first.exists()


def test_worktrees_are_added_listed_and_removed(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    (found,) = repo.worktrees()
    assert (found.path, found.branch) == (worktree, "exp/r/01-x")
    git(repo.root, "worktree", "lock", str(worktree))
    for _ in range(2):
        repo.worktree_remove(worktree)
    assert repo.worktrees() == [] and not worktree.exists()
    assert repo.rev_parse("exp/r/01-x") == sha
    repo.worktree_add(worktree, "exp/r/01-x", None)
    assert repo.head_sha(worktree) == sha


def test_branch_in_use_is_refused_and_nothing_is_left(repo: Repo) -> None:
    grow(repo, 1, base="x")
    with pytest.raises(GitError):
        repo.worktree_add(repo.root / ".worktrees" / "two", "exp/r/01-x", None)
    with pytest.raises(GitError):
        repo.worktree_add(repo.root / ".worktrees" / "two", "exp/r/01-x", repo.head_sha())
    assert len(repo.worktrees()) == 1


def test_prune_removes_only_worktrees_of_runs(repo: Repo, tmp_path: Path) -> None:
    worktree, _ = grow(repo, 1, base="x")
    git(repo.root, "worktree", "add", "-q", str(tmp_path / "users"))
    (repo.common / "worktrees" / "exp-r-09").mkdir()
    (repo.common / "worktrees" / "users-half").mkdir()
    (repo.common / "worktrees" / "exp-r-08").mkdir()
    (repo.common / "worktrees" / "exp-r-08" / "gitdir").write_text(f"{worktree.parent}/ex")  # torn by a power cut
    for path in (worktree, tmp_path / "users"):
        subprocess.run(["rm", "-r", str(path)], check=True)
    removed = {path.name for path in repo.worktree_prune()}
    assert removed == {"exp-r-01", "exp-r-08", "exp-r-09"}
    assert (repo.common / "worktrees" / "users").is_dir()


def test_changed_git_file_of_a_worktree_is_not_followed(repo: Repo, tmp_path: Path) -> None:
    worktree, sha = grow(repo, 1, base="x")
    victim = Repo.init(tmp_path)
    (tmp_path / "f").write_text("")
    before = victim.commit_all("victim")
    (worktree / ".git").write_text(f"gitdir: {tmp_path / '.git'}\n")
    (worktree / "base.txt").write_text("y")
    later = repo.commit(worktree, ["base.txt"], "Still here")
    assert repo.commit_info(later).parents == (sha,) and victim.head_sha() == before
    repo.worktree_remove(worktree)
    assert not worktree.exists()


def test_removing_a_worktree_replaced_by_a_link_keeps_the_target(repo: Repo, tmp_path: Path) -> None:
    worktree, _ = grow(repo, 1, base="x")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "f").write_text("")
    worktree.rename(tmp_path / "moved")
    worktree.symlink_to(tmp_path / "precious")
    repo.worktree_remove(worktree)
    assert (tmp_path / "precious" / "f").exists() and not worktree.is_symlink()


def test_uncommitted_changes_can_be_saved_as_a_patch(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    assert repo.uncommitted_patch(worktree) == b""
    (worktree / "base.txt").write_text("edited\n")
    (worktree / "new.json").write_bytes(b"\0\1")
    patch = repo.uncommitted_patch(worktree)
    git(repo.root, "checkout", "-q", sha)
    subprocess.run(["git", "apply"], cwd=repo.root, input=patch, check=True)
    assert (repo.root / "base.txt").read_text() == "edited\n" and (repo.root / "new.json").read_bytes() == b"\0\1"


# ---- merges


def test_merge_is_one_commit_with_all_parents(repo: Repo) -> None:
    target, first = grow(repo, 1, base="X\n\n2\n\n3\n")
    _, second = grow(repo, 2, base="1\n\nY\n\n3\n")
    _, third = grow(repo, 3, base="1\n\n2\n\nZ\n", more="m")
    sha = repo.merge(target, [second, third], "Compose", {"Attempt": "id"})
    assert repo.commit_info(sha).parents == (first, second, third)
    assert (target / "base.txt").read_text() == "X\n\nY\n\nZ\n" and (target / "more.txt").read_text() == "m"
    assert repo.dirty_paths(worktree=target) == [] and repo.rev_parse("exp/r/01-x") == sha


def test_conflict_names_the_files_and_changes_nothing(repo: Repo) -> None:
    target, first = grow(repo, 1, base="X\n\n2\n\n3\n", other="a")
    _, second = grow(repo, 2, base="Y\n\n2\n\n3\n", other="b")
    with pytest.raises(MergeConflictError) as caught:
        repo.merge(target, [second], "Compose")
    assert caught.value.files == ("base.txt", "other.txt")
    assert repo.head_sha(target) == first and repo.dirty_paths(worktree=target) == []


# ---- extraction, bundles


def test_extract_writes_the_committed_bytes(repo: Repo, tmp_path: Path) -> None:
    (repo.root / ".gitattributes").write_text("*.py export-ignore\nsub.txt export-subst eol=crlf\n")
    (repo.root / "modules" / "deep").mkdir()
    (repo.root / "modules" / "deep" / "sub.txt").write_text("$Format:%H$\n")
    sha = repo.commit_all("Attributes")
    assert repo.extract(sha, "modules", tmp_path / "out") == ["a.py", "deep/sub.txt"]
    assert (tmp_path / "out" / "a.py").read_text() == "a = 1\n"
    assert (tmp_path / "out" / "deep" / "sub.txt").read_bytes() == b"$Format:%H$\n"
    with pytest.raises(GitError, match="not empty"):
        repo.extract(sha, "modules", tmp_path / "out")
    with pytest.raises(GitError, match="larger"):
        repo.extract(sha, "modules", tmp_path / "small", max_bytes=5)


def test_extract_refuses_links(repo: Repo, tmp_path: Path) -> None:
    (repo.root / "modules" / "l").symlink_to("/etc/passwd")
    sha = repo.commit_all("Link")
    with pytest.raises(GitError, match="regular"):
        repo.extract(sha, "modules", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bundle_can_be_cloned(repo: Repo, tmp_path: Path) -> None:
    _, sha = grow(repo, 1, base="x")
    repo.bundle_create(tmp_path / "b.bundle", ["refs/heads/main", "refs/heads/exp/r/01-x"])
    git(tmp_path, "clone", "-q", "-b", "exp/r/01-x", "b.bundle", "clone")
    assert git(tmp_path / "clone", "rev-parse", "HEAD").strip() == sha
    with pytest.raises(GitError):
        repo.bundle_create(tmp_path / "c.bundle", ["refs/heads/none"])
    assert sorted(path.name for path in tmp_path.glob("*bundle*")) == ["b.bundle"]


# ---- hostile settings


@pytest.mark.parametrize(
    "ask",
    [
        lambda repo, name, place: repo.commit_info(name),
        lambda repo, name, place: repo.ls_tree(name),
        lambda repo, name, place: repo.show_file(name, "a"),
        lambda repo, name, place: repo.diff_entries(name, "HEAD"),
        lambda repo, name, place: repo.diff_text("HEAD", name),
        lambda repo, name, place: repo.extract(name, "modules", place / "out"),
        lambda repo, name, place: repo.worktree_add(place / "tree", name, None),
        lambda repo, name, place: repo.worktree_add(place / "tree", "exp/r/01-x", name),
        lambda repo, name, place: repo.merge_tree(["HEAD", name]),
        lambda repo, name, place: repo.bundle_create(place / "out.bundle", [name]),
        lambda repo, name, place: repo.check_out("other", name),
        lambda repo, name, place: repo.check_out(name, repo.head_sha()),
        lambda repo, name, place: repo.update_refs([RefUpdate(name, repo.head_sha(), None)]),
        lambda repo, name, place: repo.update_refs([RefUpdate(f"refs/heads/{name}", repo.head_sha(), None)]),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["--output=PWNED", "--upload-pack=touch PWNED", "--exec=touch PWNED", "--all", "-h", "--help", "ext::touch PWNED"],
)
def test_name_is_never_an_option(
    repo: Repo, tmp_path: Path, ask: Callable[[Repo, str, Path], object], name: str
) -> None:
    before = repo.refs("refs")
    with pytest.raises(GitError):
        ask(repo, name, tmp_path / "place")
    assert not list(tmp_path.rglob("PWNED*")) and repo.refs("refs") == before
    assert repo.rev_parse(name) is None


def test_no_transport_is_available(repo: Repo, tmp_path: Path) -> None:
    """The repository's own configuration cannot enable one."""
    other = tmp_path / "other"
    other.mkdir()
    Repo.init(other)
    git(repo.root, "config", "protocol.ext.allow", "always")
    git(repo.root, "config", "protocol.file.allow", "always")
    for url in (str(other), f"file://{other}", f"ext::sh -c touch% {tmp_path}/PWNED", "ssh://localhost/x", "git://x/y"):
        status, _, err = repo._run(["ls-remote", url])
        assert status != 0 and "not allowed" in err, err
    assert not (tmp_path / "PWNED").exists()


def test_bare_repository_inside_the_work_tree_is_ignored(repo: Repo, tmp_path: Path) -> None:
    inner = repo.root / "runs/inner"
    inner.mkdir(parents=True)
    git(inner, "init", "-q", "--bare", ".")
    with pytest.raises(UsageError):
        Repo.discover(inner)


def test_links_are_checked_out_as_core_symlinks_says(repo: Repo, tmp_path: Path) -> None:
    (repo.root / "modules/link").symlink_to("a.py")
    sha = repo.commit_all("Link")
    repo.worktree_add(tmp_path / "tree", "exp/r/01-x", sha)
    assert (tmp_path / "tree/modules/link").is_symlink()
    repo.bundle_create(tmp_path / "b.bundle", ["refs/heads/exp/r/01-x"])
    (tmp_path / "foreign").mkdir()
    foreign = Repo.init(tmp_path / "foreign", symlinks=False)
    foreign.unbundle(tmp_path / "b.bundle", {"refs/heads/exp/r/01-x": sha})
    foreign.check_out("main", sha)
    link = foreign.root / "modules/link"
    assert not link.is_symlink() and link.read_text() == "a.py" and foreign.dirty_paths() == []
    foreign.worktree_add(tmp_path / "again", "exp/r/01-x", None)
    assert not (tmp_path / "again/modules/link").is_symlink()


def test_incomplete_bundle_leaves_no_branch(repo: Repo, tmp_path: Path) -> None:
    first = repo.head_sha()
    (repo.root / "more.txt").write_text("more\n")
    sha = repo.commit_all("More")
    repo.bundle_create(tmp_path / "part.bundle", ["refs/heads/main", f"^{first}"])
    repo.bundle_create(tmp_path / "whole.bundle", ["refs/heads/main"])
    (tmp_path / "foreign").mkdir()
    foreign = Repo.init(tmp_path / "foreign")
    for name, tip in (("part", sha), ("whole", "0" * 40)):
        with pytest.raises(GitError):
            foreign.unbundle(tmp_path / f"{name}.bundle", {"refs/heads/main": tip})
        assert foreign.refs("refs") == {}
    foreign.unbundle(tmp_path / "whole.bundle", {"refs/heads/main": sha})
    assert foreign.refs("refs") == {"refs/heads/main": sha}


def test_no_program_configured_in_the_repository_runs(repo: Repo, tmp_path: Path) -> None:
    trap, sprung = tmp_path / "trap.sh", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{sprung}'\ncat\n")
    trap.chmod(0o755)
    (repo.common / "hooks").mkdir(exist_ok=True)
    for hook in ("pre-commit", "post-commit", "post-checkout", "reference-transaction", "post-index-change"):
        (repo.common / "hooks" / hook).symlink_to(trap)
    settings = {"core.fsmonitor": trap, "gpg.program": trap, "commit.gpgSign": "true", "diff.external": trap,
                "core.hooksPath": repo.common / "hooks", "core.pager": trap, "core.editor": trap,
                "gc.auto": "1", "gc.recentObjectsHook": trap}  # fmt: skip
    for name, value in settings.items():
        git(repo.root, "config", name, str(value))
    inner = repo.root / "modules" / "inner"
    git(repo.root, "init", "-q", str(inner))
    (inner / "f").write_text("x")
    git(inner, "add", "f")
    git(inner, "commit", "-q", "-m", "x")
    git(inner, "config", "core.fsmonitor", str(trap))
    sprung.unlink(missing_ok=True)
    worktree, sha = grow(repo, 1, base="x\n\n2\n\n3\n")
    other, second = grow(repo, 2, base="1\n\n2\n\ny\n")
    repo.merge(worktree, [second], "m")
    repo.commit(other, ["modules"], "again")
    repo.dirty_paths()
    repo.commit_all("all")
    repo.dirty_paths()
    repo.diff_text(repo.head_sha(), sha)
    sha = repo.head_sha(worktree)
    repo.worktree_remove(worktree)
    quarantine(repo, sha)
    repo.worktree_remove(worktree)
    assert not sprung.exists(), sprung.read_text()


def test_git_environment_variables_are_not_passed_to_git(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, fake = tmp_path / "seen", tmp_path / "bin"
    fake.mkdir()
    real = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    (fake / "git").write_text(f"#!/bin/sh\nenv > '{seen}'\nexec {real} \"$@\"\n")
    (fake / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    repo.head_sha()
    names = {line.split("=")[0] for line in seen.read_text().splitlines()}
    assert "PATH" in names and not names & {"ANTHROPIC_API_KEY", "GIT_INDEX_FILE", "HOME"}


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


# ---- crashes and concurrent writers


LOCK_PLACES = ["packed-refs.lock", "refs/heads/exp/r/01-x.lock", "worktrees/exp-r-01/index.lock"]
DIE = """
import os, sys
from pathlib import Path
from autoqec.system.git.lock import RepositoryLock
from autoqec.system.git.parsing import PrunedObjectError
from autoqec.system.git.read import git_error
common = Path(sys.argv[1])
with RepositoryLock(common).hold():
    for place in sys.argv[2:]:
        (common / place).write_text("")
    os._exit(1)
"""


def leave_locks(repo: Repo) -> None:
    """Start a writer that dies and leaves each of the lock files."""
    ended = subprocess.run([sys.executable, "-c", DIE, str(repo.common), *LOCK_PLACES])
    assert ended.returncode == 1


def remaining_locks(repo: Repo) -> list[str]:
    return [place for place in LOCK_PLACES if (repo.common / place).exists()]


def test_lock_files_are_found_below_directories_of_any_depth(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without subdirectories, which the number of links tells on most file systems, names are read alone."""
    refs = repo.common / "refs" / "heads" / "exp"
    wanted = [refs / "top.lock", refs / "run" / "a.lock", refs / "run" / "deep" / "b.lock"]
    wanted += [repo.common / "logs" / "refs" / "autoqec" / "run" / "c.lock"]
    for path in (*wanted, refs / "run" / "a", refs / "run" / "deep" / "no.lock.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (refs / "other").symlink_to(refs / "run")
    assert sorted(lock._lock_files(repo.common)) == sorted([repo.common / "packed-refs.lock", *wanted])
    real = os.stat

    def without_links(path: Any, *given: Any, **more: Any) -> Any:
        found = real(path, *given, **more)
        return os.stat_result((*found[:3], 1, *found[4:])) if isinstance(path, str) else found  # as btrfs

    monkeypatch.setattr(os, "stat", without_links)
    assert sorted(lock._lock_files(repo.common)) == sorted([repo.common / "packed-refs.lock", *wanted])


def test_only_directories_that_changed_since_the_writer_began_are_read_again(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many rounds in progress most of the records of worktrees belong to other rounds."""
    paths = [grow(repo, number, base="x")[0] for number in (1, 2, 3)]
    records = [repo.common / "worktrees" / path.name for path in paths]
    for record in records:
        os.utime(record, (1, 1))
    read, listdir = list[str](), os.listdir

    def listed(directory: Any) -> list[str]:
        read.append(Path(str(directory)).name)
        return listdir(directory)

    monkeypatch.setattr(os, "listdir", listed)
    with RepositoryLock(repo.common).hold():
        assert not {path.name for path in records} & set(read), "only what is not older than the writer"
        (records[1] / "index.lock").touch()
        os.utime(repo.common / "refs/heads/exp/r", (1, 1))
        read.clear()
        (records[1] / "index.lock").unlink()
    assert {record.name for record in records} & set(read) == {records[1].name} and "r" not in read


def test_locks_of_a_killed_git_are_removed_by_the_next_writer(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    (repo.common / "index.lock").write_text("the user's")
    leave_locks(repo)
    assert remaining_locks(repo) == LOCK_PLACES
    (worktree / "base.txt").write_text("y")
    repo.commit(worktree, ["base.txt"], "again")
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


def test_failed_call_does_not_mark_its_writer_as_dead(repo: Repo) -> None:
    with pytest.raises(GitError):
        repo.update_refs([RefUpdate("refs/heads/main", None, "1" * 40)])
    repo.worktree_prune()
    assert (repo.common / "autoqec.lock").read_bytes() == b""


def test_writer_without_git_needs_no_record_and_removes_what_a_dead_one_left(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree, _ = grow(repo, 1, base="x")
    leave_locks(repo)
    monkeypatch.setattr(os, "fdatasync", lambda fd: pytest.fail("it waits for the disk"))
    repo.worktree_remove(worktree)
    assert not worktree.exists() and remaining_locks(repo) == []
    assert (repo.common / "autoqec.lock").read_bytes() == b""
    with (
        RepositoryLock(repo.common).hold(starts_git=False),
        pytest.raises(GitError, match="holds"),
        RepositoryLock(repo.common).hold(timeout_s=0.05),
    ):
        pass


def test_writers_are_serialized(repo: Repo) -> None:
    with (
        RepositoryLock(repo.common).hold(),
        pytest.raises(GitError, match="holds"),
        RepositoryLock(repo.common).hold(timeout_s=0.05),
    ):
        pass
    with RepositoryLock(repo.common).hold(timeout_s=0.05):
        pass


SURVIVED = """
import os, subprocess, sys
from pathlib import Path
from autoqec.system.git.lock import RepositoryLock
with RepositoryLock(Path(sys.argv[1])).hold() as lock:
    print(subprocess.Popen(["sleep", "600"], pass_fds=[lock], stdout=subprocess.DEVNULL).pid, flush=True)
    os._exit(1)
"""


def test_git_process_that_survives_its_parent_keeps_the_lock(repo: Repo) -> None:
    argv = [sys.executable, "-c", SURVIVED, str(repo.common)]
    survivor = int(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False).stdout)
    try:
        with pytest.raises(GitError), RepositoryLock(repo.common).hold(timeout_s=0.05):
            pass
    finally:
        os.kill(survivor, signal.SIGKILL)
    repo.worktree_prune()


def test_process_that_stays_alive_does_not_keep_the_lock_between_two_uses(repo: Repo) -> None:
    held = RepositoryLock(repo.common)
    with held.hold() as lock:
        alive = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
    try:
        with RepositoryLock(repo.common).hold(timeout_s=0.05), pytest.raises(GitError, match="holds"):
            held._locked(0.05)
        with held.hold(timeout_s=0.05) as again:
            assert again == lock
    finally:
        alive.kill()
        alive.wait()


def test_threads_that_share_a_lock_exclude_each_other(repo: Repo) -> None:
    shared, errors = RepositoryLock(repo.common), list[GitError]()

    def wait() -> None:
        try:
            with shared.hold(timeout_s=0.05):
                pass
        except GitError as error:
            errors.append(error)

    with shared.hold():
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert [str(error.location) for error in errors] == [str(repo.common / "autoqec.lock")]


def test_lock_is_free_after_an_error_of_the_file_system(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may appear when the lock is held already; the file stays open in this process."""

    def stale(*_: Any) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    held = RepositoryLock(repo.common)
    with monkeypatch.context() as faulty, pytest.raises(StorageError, match="Stale file handle"):
        faulty.setattr(os.path, "samestat", stale)
        with held.hold():
            pass
    with RepositoryLock(repo.common).hold(timeout_s=0.05):
        pass
    with held.hold(timeout_s=0.05):
        pass


@pytest.mark.parametrize("replaced", [False, True])
def test_lock_file_that_was_removed_is_opened_again(repo: Repo, replaced: bool) -> None:
    """Otherwise two processes could hold the lock, each of another file."""
    held = RepositoryLock(repo.common)
    with held.hold():
        pass
    first = held.origin
    (repo.common / "autoqec.lock").unlink()
    if replaced:
        (repo.common / "autoqec.lock").touch()
    with held.hold(), pytest.raises(GitError, match="holds"), RepositoryLock(repo.common).hold(timeout_s=0.05):
        pass
    assert held.origin != first


CONCURRENT_WRITER = """
import sys
import threading
from autoqec.system.git import RefUpdate, Repo
repo = Repo.discover(sys.argv[1])
sha = repo.head_sha()
for n in range(12):
    path = repo.root / ".worktrees" / f"exp-{sys.argv[2]}-{n}"
    repo.worktree_add(path, f"exp/{sys.argv[2]}/{n}", sha)
    repo.commit(path, ["base.txt"], "x")
    repo.worktree_remove(path)
"""


def test_two_processes_write_concurrently(repo: Repo) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", CONCURRENT_WRITER, str(repo.root), name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert (
        len(repo.refs("refs/heads/exp")) == 24
        and repo.worktrees() == []
        and git(repo.root, "fsck", "--no-dangling") == ""
    )


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


@pytest.mark.parametrize(
    ("mode", "step"),
    [(0o755, "add"), (0o755, "write-tree"), (0o755, "commit-tree"), (0o644, "write"), (0o644, "read-tree")],
)
@pytest.mark.parametrize("times", [1, 2])
def test_commit_is_repeated_once_after_a_prune_of_another_process(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, mode: int, step: str, times: int
) -> None:
    """Objects that no ref names yet are removed after a step of the commit, as `git prune --expire=now` does."""
    path, before = grow(repo, 1, base="x")
    (path / "new.txt").write_text("an object that nothing refers to yet")
    (path / "new.txt").chmod(mode)
    known, run, left = set(repo.common.glob("objects/*/*")), repo._run, [times]
    write = new_objects.NewObjects.write

    def prune(done: str) -> None:
        if done == step and left[0]:
            left[0] -= 1
            for written in set(repo.common.glob("objects/*/*")) - known:
                written.unlink()

    def pruned(arguments: Sequence[str], **more: Any) -> tuple[int, bytes, str]:
        done = run(arguments, **more)
        prune(arguments[0])
        return done

    def written_and_pruned(objects: new_objects.NewObjects, directory: Path) -> None:
        write(objects, directory)
        prune("write")

    monkeypatch.setattr(repo, "_run", pruned)
    monkeypatch.setattr(new_objects.NewObjects, "write", written_and_pruned)
    if times == 2:
        with pytest.raises(PrunedObjectError) as failed:
            repo.commit(path, ["new.txt"], "round 1", {"Attempt": "a"})
        assert "git prune" in (failed.value.hint or "") and repo.head_sha(path) == before
        return
    sha = repo.commit(path, ["new.txt"], "round 1", {"Attempt": "a"})
    assert repo.head_sha(path) == sha and repo.commit_info(sha).parents == (before,)
    assert git(repo.root, "show", f"{sha}:new.txt").startswith("an object")
    assert git(repo.root, "fsck", "--no-dangling") == ""
