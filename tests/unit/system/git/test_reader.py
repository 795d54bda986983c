"""What is read from a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.system.git import GitError, Repo
from tests.support.repositories import git, grow


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


def test_objects_and_their_sizes(repo: Repo) -> None:
    (repo.root / "large.bin").write_bytes(bytes(200_000))
    sha = repo.commit_all("Large")
    names = [sha, f"{sha}:base.txt", f"{sha}:missing file", "0" * 40, "x blob 5", f"{sha}:modules"]
    kinds = [None if found is None else found[1] for found in repo.sizes(names)]
    assert kinds == ["commit", "blob", None, None, None, "tree"]
    commit, blob, *missing, tree = repo.objects(names)
    assert commit is not None and blob is not None and tree is not None and missing == [None] * 3
    assert commit[0] == sha and blob[1] == b"1\n\n2\n\n3\n" and b"a.py" in tree[1]
    assert repo.objects([]) == []
    assert {entry[1] for entry in repo.objects([f"{sha}:large.bin"] * 100) if entry} == {bytes(200_000)}
    with pytest.raises(GitError, match="not a name"):
        repo.objects([f"{sha}:base.txt\n{sha}"])
    with pytest.raises(GitError, match="missing"):
        repo.commit_info("0" * 40)
