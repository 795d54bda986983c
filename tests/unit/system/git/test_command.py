"""The environment and the options with which git runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autoqec.system.git import RefUpdate, Repo
from tests.support.repositories import branch, git, grow


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
    repo.merge([sha, second], "m")
    repo.commit(other, branch(2), ["modules"], "again")
    repo.dirty_paths()
    repo.commit_all("all")
    repo.dirty_paths()
    repo.diff_text(repo.head_sha(), sha)
    sha = repo.head_sha(worktree)
    repo.worktree_remove(worktree)
    repo.update_refs([RefUpdate(f"refs/heads/{branch(1)}", None, sha)])
    repo.worktree_remove(worktree)
    assert not sprung.exists(), sprung.read_text()


def test_works_without_any_identity(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EMAIL", raising=False)
    _, sha = grow(repo, 1, base="x")
    assert git(repo.root, "show", "-s", "--format=%an <%ae> %cn", sha).strip() == "AutoQEC <autoqec@localhost> AutoQEC"


def test_discover_ignores_git_environment_variables(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    found = Repo.discover(repo.root)
    assert found.root == repo.root and found.head_sha() == repo.head_sha()


def test_warnings_of_git_are_no_answers_and_do_not_block(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a pipe holds, before and after the answer."""
    real = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "bin").mkdir()
    noisy = tmp_path / "bin" / "git"
    noise = "head -c 200000 /dev/zero | tr '\\0' '\\n' | sed 's/^/warning: noise/' >&2"
    noisy.write_text(f'#!/bin/sh\n{noise}\n{real} "$@"\nstatus=$?\n{noise}\nexit $status\n')
    noisy.chmod(0o755)
    sha = repo.head_sha()
    monkeypatch.setenv("PATH", f"{noisy.parent}:{os.environ['PATH']}")
    assert Repo.discover(repo.root).head_sha() == sha and repo.objects(["0" * 40, f"{sha}:nothing"]) == [None, None]
    path, tip = grow(repo, base="x")
    repo.worktree_remove(path)
    assert repo.refs("refs/heads/exp") == {f"refs/heads/{branch(1)}": tip}


@pytest.mark.parametrize("setting", ["extensions.worktreeConfig=true", "core.sharedRepository=group"])
def test_repository_with_an_unusual_setting_holds_a_round(repo: Repo, setting: str) -> None:
    git(repo.root, "config", *setting.split("="))
    git(repo.root, "sparse-checkout", "disable")  # writes settings of the main worktree
    path, tip = grow(repo, base="x")
    assert git(path, "status", "--porcelain") == "" and repo.show_file(tip, "base.txt") == b"x"
    repo.worktree_remove(path)
    assert repo.worktrees() == [] and git(repo.root, "fsck", "--no-dangling") == ""


def test_repository_with_reftable_holds_a_round(tmp_path: Path) -> None:
    asked = subprocess.run(["git", "init", "-q", "--ref-format=reftable", "."], cwd=tmp_path, capture_output=True)
    if asked.returncode:
        pytest.skip("this git has no reftable; to install: git 2.45 or newer")
    repo = Repo.discover(tmp_path)
    (tmp_path / "base.txt").write_text("1")
    repo.commit_all("Start")
    path, tip = grow(repo, base="x")
    assert repo.checked_out_branches() == {repo.head_ref(), branch(1)}
    repo.worktree_remove(path)
    repo.update_refs([RefUpdate(f"refs/heads/{branch(1)}", None, tip)])
    assert repo.worktrees() == [] and git(tmp_path, "fsck", "--no-dangling") == ""


def test_second_user_of_a_shared_repository_can_commit_the_same_file() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user; to install: nothing, run the tests as root")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        git(root, "init", "-q", "--shared=group", ".")
        repo = Repo.discover(root)
        (root / "base.txt").write_text("1")
        repo.commit_all("Start")
        grow(repo, base="the same")
        subprocess.run(["chown", "-R", "4241:4242", name], check=True)
        subprocess.run(["chmod", "-R", "g+rwX", name], check=True)
        code = (
            "import os, sys; from pathlib import Path\n"
            "from autoqec.system.git import Repo; from tests.support.repositories import grow\n"
            "repo = Repo(Path(sys.argv[1]), Path(sys.argv[1], '.git'))\n"
            "repo.head_sha(); os.setgroups([]); os.setgid(4242); os.setuid(4243); os.umask(2)\n"
            "grow(repo, 2, base='the same')\n"
        )
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
