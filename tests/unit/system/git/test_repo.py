"""Changes of a repository: worktrees, commits, refs, merges and bundles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import UsageError
from autoqec.system.git import GitError, MergeConflictError, RefUpdate, Repo, command
from tests.support.repositories import add, branch, git, grow

BRANCH = branch(1)


def quarantine(repo: Repo, sha: str) -> None:
    """Rename the branch of `grow(repo)` if it is at `sha`."""
    repo.update_refs(
        [RefUpdate("refs/heads/quarantine/r/01-x", sha, None), RefUpdate(f"refs/heads/{BRANCH}", None, sha)]
    )


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


def test_repository_without_commits_is_refused(tmp_path: Path) -> None:
    repo = Repo.init(tmp_path)
    assert repo.rev_parse("HEAD") is None and repo.head_ref() == "main"
    with pytest.raises(UsageError, match="no commit"):
        repo.head_sha()


def test_commit_holds_exactly_the_named_paths(repo: Repo) -> None:
    worktree = repo.root / ".worktrees" / "exp-r-01"
    repo.worktree_add(worktree, BRANCH, repo.head_sha())
    (worktree / "modules" / "a.py").write_text("a = 2\n")
    (worktree / "modules" / "ignored.json").write_text("{}")
    (worktree / "base.txt").write_text("left out")
    (worktree / "stray.txt").write_text("left out")
    git(worktree, "add", "stray.txt")
    base, sha = repo.head_sha(), repo.commit(worktree, BRANCH, ["modules"], "Wider", {"Attempt": "id-1"})
    assert [entry.path for entry in repo.diff_entries(base, sha)] == ["modules/a.py", "modules/ignored.json"]
    assert repo.refs("refs/heads/exp")[f"refs/heads/{BRANCH}"] == sha
    assert repo.commit_info(sha).parents == (base,)
    assert repo.commit_info(sha).trailers == {"Attempt": "id-1"}
    assert repo.dirty_paths(worktree=worktree) == ["base.txt", "stray.txt"]
    assert repo.head_sha() == base and repo.dirty_paths() == []


def test_other_branch_in_the_worktree_is_never_committed_to(repo: Repo) -> None:
    path, tip = grow(repo, base="x")
    for arguments in (["switch", "-q", "-c", "mine"], ["checkout", "-q", "--detach"]):
        git(path, *arguments)
        with pytest.raises(UsageError, match="nothing is committed") as refused:
            repo.commit(path, BRANCH, ["base.txt"], "x")
        assert repo.rev_parse("mine") == repo.rev_parse(BRANCH) == repo.head_sha(path) == tip
    subprocess.run(str(refused.value.hint).replace(str(path), "."), shell=True, cwd=path, check=True)
    assert repo.commit_info(repo.commit(path, BRANCH, ["base.txt"], "x")).parents == (tip,)


def test_commit_is_repeated_after_a_prune_of_another_process(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that no ref names yet are removed, as `git prune --expire=now` does."""
    path, before = grow(repo, base="x")
    (path / "new.txt").write_text("an object that nothing refers to yet")
    known, execute, pruned = set(repo.common.glob("objects/*/*")), command.execute, list[Path]()

    def prune_once(cwd: Path, arguments: Sequence[str], **more: Any) -> tuple[int, bytes, str]:
        done = execute(cwd, arguments, **more)
        if "write-tree" in arguments and not pruned:
            pruned.extend(set(repo.common.glob("objects/*/*")) - known)
            for written in pruned:
                written.unlink()
        return done

    monkeypatch.setattr(command, "execute", prune_once)
    sha = repo.commit(path, BRANCH, ["new.txt"], "round 1")
    assert pruned and repo.commit_info(sha).parents == (before,) and git(repo.root, "fsck", "--no-dangling") == ""


def test_file_behind_a_link_is_refused(repo: Repo, tmp_path: Path) -> None:
    path = add(repo)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (path / "round_1").symlink_to(tmp_path / "outside")
    with pytest.raises(GitError, match="beyond a symbolic link"):
        repo.commit(path, BRANCH, ["round_1/secret"], "x")
    assert repo.head_sha(path) == repo.head_sha()


def test_deletion_is_committed(repo: Repo) -> None:
    worktree = repo.root / ".worktrees" / "exp-r-01"
    repo.worktree_add(worktree, BRANCH, repo.head_sha())
    (worktree / "modules" / "a.py").unlink()
    sha = repo.commit(worktree, BRANCH, ["modules"], "Gone")
    assert [(entry.status, entry.path) for entry in repo.diff_entries(repo.head_sha(), sha)] == [("D", "modules/a.py")]


def test_generated_text_cannot_forge_a_trailer(repo: Repo) -> None:
    worktree, _ = grow(repo, 1, base="x")
    sha = repo.commit(worktree, BRANCH, ["base.txt"], "Fine\n\nAttempt: forged", {"Attempt": "true\nOther: forged"})
    assert repo.commit_info(sha).trailers == {"Attempt": "true Other: forged"}
    assert repo.commit_info(repo.commit(worktree, BRANCH, ["base.txt"], "-m\0\n#x")).trailers == {}


def test_paths_are_not_interpreted_as_patterns(repo: Repo) -> None:
    worktree, _ = grow(repo, 1, base="x")
    (worktree / "*.txt").write_text("star")
    (worktree / "other.txt").write_text("other")
    sha = repo.commit(worktree, BRANCH, ["*.txt"], "Star")
    assert [entry.path for entry in repo.diff_entries(repo.commit_info(sha).parents[0], sha)] == ["*.txt"]
    for path in ("../../base.txt", "no such file", str(worktree / "base.txt"), ".git/config"):
        with pytest.raises(GitError):
            repo.commit(worktree, BRANCH, [path], "x")


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


def test_rename_keeps_the_commit_and_removes_the_old_name(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    repo.worktree_remove(worktree)
    with pytest.raises(GitError):
        quarantine(repo, repo.head_sha())
    quarantine(repo, sha)
    assert repo.refs("refs/heads") == {"refs/heads/main": repo.head_sha(), "refs/heads/quarantine/r/01-x": sha}


def test_worktrees_are_added_listed_and_removed(repo: Repo) -> None:
    worktree, sha = grow(repo, 1, base="x")
    (found,) = repo.worktrees()
    assert found.path == worktree and repo.checked_out_branches() == {"main", BRANCH}
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


def test_removal_takes_records_without_a_place_and_leaves_those_of_others(repo: Repo, tmp_path: Path) -> None:
    worktree, _ = grow(repo, base="x")
    git(repo.root, "worktree", "add", "-q", str(tmp_path / "users"))
    records = repo.common / "worktrees"
    for name, place in (("exp-r-011", None), ("exp-r-09", None), ("exp-r-012", f"{worktree.parent}/ex")):
        (records / name).mkdir()  # torn by a kill or a power cut
        (records / name / "locked").write_text("initializing")
        if place:
            (records / name / "gitdir").write_text(place)
    for path in (worktree, tmp_path / "users"):
        subprocess.run(["rm", "-r", str(path)], check=True)
    repo.worktree_remove(worktree)
    assert {path.name for path in records.iterdir()} == {"users", "exp-r-09"}


def test_changed_git_file_of_a_worktree_is_not_followed(repo: Repo, tmp_path: Path) -> None:
    worktree, sha = grow(repo, 1, base="x")
    victim = Repo.init(tmp_path)
    (tmp_path / "f").write_text("")
    before = victim.commit_all("victim")
    (worktree / ".git").write_text(f"gitdir: {tmp_path / '.git'}\n")
    (worktree / "base.txt").write_text("y")
    later = repo.commit(worktree, BRANCH, ["base.txt"], "Still here")
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


def test_merge_is_one_commit_with_all_parents(repo: Repo) -> None:
    _, first = grow(repo, 1, base="X\n\n2\n\n3\n")
    _, second = grow(repo, 2, base="1\n\nY\n\n3\n")
    _, third = grow(repo, 3, base="1\n\n2\n\nZ\n", more="m")
    before = repo.refs("refs")
    sha = repo.merge([first, second, third], "Compose", {"Attempt": "id"})
    commit = repo.commit_info(sha)
    assert commit.parents == (first, second, third) and commit.trailers == {"Attempt": "id"}
    assert repo.show_file(sha, "base.txt") == b"X\n\nY\n\nZ\n" and repo.show_file(sha, "more.txt") == b"m"
    assert repo.refs("refs") == before


def test_conflict_names_the_files(repo: Repo) -> None:
    _, first = grow(repo, 1, base="X\n\n2\n\n3\n", other="a")
    _, second = grow(repo, 2, base="Y\n\n2\n\n3\n", other="b")
    with pytest.raises(MergeConflictError) as caught:
        repo.merge([first, second], "Compose")
    assert caught.value.files == ("base.txt", "other.txt")


def test_bundle_can_be_cloned(repo: Repo, tmp_path: Path) -> None:
    _, sha = grow(repo, 1, base="x")
    repo.bundle_create(tmp_path / "b.bundle", ["refs/heads/main", "refs/heads/exp/r/01-x"])
    git(tmp_path, "clone", "-q", "-b", "exp/r/01-x", "b.bundle", "clone")
    assert git(tmp_path / "clone", "rev-parse", "HEAD").strip() == sha
    with pytest.raises(GitError):
        repo.bundle_create(tmp_path / "c.bundle", ["refs/heads/none"])
    assert sorted(path.name for path in tmp_path.glob("*bundle*")) == ["b.bundle"]


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
        lambda repo, name, place: repo.merge(["HEAD", name], "x"),
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


CONCURRENT_WRITER = """
import sys
from autoqec.system.git import RefUpdate, Repo
repo = Repo.discover(sys.argv[1])
sha = repo.head_sha()
for n in range(12):
    path = repo.root / ".worktrees" / f"exp-{sys.argv[2]}-{n}"
    repo.worktree_add(path, f"exp/{sys.argv[2]}/{n}", sha)
    repo.commit(path, f"exp/{sys.argv[2]}/{n}", ["base.txt"], "x")
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
