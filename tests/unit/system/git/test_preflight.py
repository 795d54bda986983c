"""Repositories in which no round could finish are refused with a hint that names a command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from autoqec.errors import UsageError
from autoqec.system.git import Repo, preflight

WRITTEN = ("modules/a.py", "round_1/round_1_pointer.json")


def git(repo: Repo, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repo.root, check=True, capture_output=True)


def test_ordinary_repository_is_accepted(repo: Repo) -> None:
    preflight.check_repository(repo, WRITTEN)


@pytest.mark.parametrize("name", ["exp", "quarantine"])
def test_branch_with_the_name_of_the_branch_prefix_is_refused(repo: Repo, name: str) -> None:
    git(repo, "branch", name)
    with pytest.raises(UsageError, match=f"the branch `{name}` exists") as error:
        preflight.check_repository(repo, WRITTEN)
    assert error.value.hint is not None
    git(repo, *error.value.hint.split()[1:])
    preflight.check_repository(repo, WRITTEN)


def test_sparse_checkout_is_refused(repo: Repo) -> None:
    git(repo, "sparse-checkout", "set", "modules")
    with pytest.raises(UsageError, match="sparse") as error:
        preflight.check_repository(repo, WRITTEN)
    assert error.value.hint is not None
    git(repo, *error.value.hint.split()[1:])
    preflight.check_repository(repo, WRITTEN)


@pytest.mark.parametrize("line", ["*.json working-tree-encoding=UTF-16", "modules/* filter=secret"])
def test_attributes_that_change_what_a_round_commits_are_refused(repo: Repo, line: str) -> None:
    git(repo, "config", "filter.secret.clean", "tac")
    attributes = repo.root / ".gitattributes"
    attributes.write_text(line + "\n")
    with pytest.raises(UsageError, match=r"changes what git stores of (modules|round_1)/") as error:
        preflight.check_repository(repo, WRITTEN)
    assert error.value.hint is not None
    attributes.write_text(f"{line}\n{error.value.hint.partition(': ')[2]}\n")
    preflight.check_repository(repo, WRITTEN)


def test_filter_without_its_program_is_refused(repo: Repo) -> None:
    (repo.root / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repo.root / "x.bin").write_bytes(b"x")
    git(repo, "add", "-A")
    preflight.check_repository(repo, WRITTEN)  # without a driver, the attribute has no effect
    git(repo, "config", "filter.lfs.process", "git-lfs-that-is-missing filter-process")
    with pytest.raises(UsageError, match=r"filter `lfs` .* x\.bin cannot be checked out") as error:
        preflight.check_repository(repo, WRITTEN)
    assert error.value.hint == "install git-lfs"
    git(repo, "config", "filter.lfs.process", "cat")
    preflight.check_repository(repo, WRITTEN)


def test_linked_worktree_is_named_with_the_baseline_of_the_main_one(repo: Repo, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", str(tmp_path / "linked"))
    found = Repo.discover(tmp_path / "linked")
    assert (found.root, found.linked_worktree) == (repo.root, tmp_path / "linked")
    note = preflight.linked_worktree_note(found, found.linked_worktree, found.head_sha())
    assert note is not None and str(tmp_path / "linked") in note and found.head_sha()[:12] in note
    assert preflight.linked_worktree_note(repo, Repo.discover(repo.root).linked_worktree, "0" * 40) is None


def test_dubious_ownership_hints_at_safe_directory(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory to another user; to install: nothing, run the tests as root")
    monkeypatch.setenv("HOME", str(tmp_path))
    os.chown(repo.root, 4242, 4242)
    os.chown(repo.common, 4242, 4242)
    with pytest.raises(UsageError, match="dubious ownership") as error:
        Repo.discover(repo.root)
    assert error.value.hint is not None and error.value.hint.startswith("git config --global --add safe.directory ")


def test_line_break_in_the_path_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "a\nb"
    root.mkdir()
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    with pytest.raises(UsageError, match="line break"):
        Repo.discover(root)
