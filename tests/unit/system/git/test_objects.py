"""Objects that are read through one process: same answers as git's own commands, also after interruptions."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autoqec.system.git import GitError, Repo, command
from autoqec.system.git import read as git_reader


def git(root: Path, *arguments: str, stdin: str = "") -> str:
    name = ["-c", "user.name=u", "-c", "user.email=u@x", "-c", "core.quotePath=false"]
    return subprocess.run(
        ["git", *name, *arguments], cwd=root, check=True, capture_output=True, text=True, input=stdin
    ).stdout


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Processes that readers started."""
    started, start = list[Any](), command.start

    def counted(*arguments: Any, **more: Any) -> Any:
        started.append(start(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(command, "start", counted)
    return started


def test_one_process_reads_all_objects(repo: Repo, starts: list[Any]) -> None:
    sha = repo.head_sha()
    names = [sha, f"{sha}:base.txt", f"{sha}:missing file", "0" * 40, f"{sha}:modules"]
    for _ in range(2):
        kinds = [None if found is None else found[1] for found in repo.sizes(names)]
        assert kinds == ["commit", "blob", None, None, "tree"]
        commit, blob, *missing, tree = repo.objects(names)
        assert commit is not None and blob is not None and tree is not None and missing == [None, None]
        assert commit[0] == sha and blob[1] == b"1\n\n2\n\n3\n" and b"a.py" in tree[1]
    assert repo.objects([]) == [] and len(starts) == 1
    with pytest.raises(GitError, match="not a name"):
        repo.objects([f"{sha}:base.txt\n{sha}"])
    with pytest.raises(GitError, match="missing"):
        repo.commit_info("0" * 40)


def test_many_requests_with_large_answers_do_not_block(repo: Repo) -> None:
    (repo.root / "large.bin").write_bytes(bytes(200_000))
    sha = repo.commit_all("Large")
    found = repo.objects([f"{sha}:large.bin"] * 300)
    assert all(entry is not None and entry[1] == bytes(200_000) for entry in found)


def test_killed_process_is_replaced(repo: Repo, starts: list[Any]) -> None:
    sha = repo.head_sha()
    before = repo.objects([sha])
    os.kill(starts[0].proc.pid, signal.SIGTERM)  # sent to all processes of a job; a run then completes its rounds
    assert repo.objects([sha]) == before and len(starts) == 1
    os.kill(starts[0].proc.pid, signal.SIGKILL)
    starts[0].proc.wait(timeout=60)
    assert repo.objects([sha]) == before and len(starts) == 2


def test_interrupted_request_does_not_shift_later_answers(
    repo: Repo, starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = repo.head_sha()
    expected = repo.objects([sha])

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repo._reader, "_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            repo.objects([f"{sha}:base.txt"])
    assert repo.objects([sha]) == expected and len(starts) == 2


def test_forked_process_does_not_read_from_the_process_of_its_parent(repo: Repo, starts: list[Any]) -> None:
    sha = repo.head_sha()
    expected = repo.objects([sha])
    child = os.fork()
    if child == 0:
        os._exit(0 if repo.objects([sha]) == expected and len(starts) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert repo.objects([sha]) == expected and len(starts) == 1


def test_process_ends_with_its_repository(repo: Repo, starts: list[Any]) -> None:
    other = Repo.discover(repo.root)
    other.objects([other.head_sha()])
    process = starts[0].proc
    assert process.poll() is None
    starts.clear()
    del other
    assert process.wait(timeout=60) is not None


def test_objects_written_or_packed_by_others_are_found(repo: Repo) -> None:
    repo.objects([repo.head_sha()])
    for number in range(3):
        (repo.root / "base.txt").write_text(f"{number}\n")
        git(repo.root, "commit", "-qam", "more")
        sha = git(repo.root, "rev-parse", "HEAD").strip()
        git(repo.root, "gc", "-q", "--prune=now")
        assert repo.objects([f"{sha}:base.txt"])[0] == (
            git(repo.root, "rev-parse", "HEAD:base.txt").strip(),
            f"{number}\n".encode(),
        )


def test_environment_of_the_process_is_clean(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fake = tmp_path / "seen", tmp_path / "bin"
    fake.mkdir()
    real = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    (fake / "git").write_text(f"#!/bin/sh\nenv > '{seen}'\nexec {real} \"$@\"\n")
    (fake / "git").chmod(0o755)
    sha = repo.head_sha()
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    repo.objects([sha])
    found = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    assert not set(found) & {"ANTHROPIC_API_KEY", "GIT_INDEX_FILE", "HOME"}
    assert {name: found.get(name) for name in command.ENVIRONMENT} == command.ENVIRONMENT


def random_tree(root: Path, rng: random.Random) -> None:
    """Write a few files, directories and links; names differ in what git's order of directories depends on."""
    for path in [path for path in root.iterdir() if path.name != ".git"]:
        subprocess.run(["rm", "-rf", str(path)], check=True)
    for _ in range(rng.randrange(1, 12)):
        path = root.joinpath(*(rng.choice(["a", "a.b", "a-b", "a0", "ü", "b c"]) for _ in range(rng.randrange(1, 4))))
        if any(parent.is_file() or parent.is_symlink() for parent in (path, *path.parents)) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if rng.random() < 0.2:
            path.symlink_to("a")
        else:
            path.write_text(rng.choice(["", "x\n", "y\n"]))
            path.chmod(rng.choice([0o644, 0o755]))


def test_files_and_differences_are_those_of_git(repo: Repo) -> None:
    rng, commits = random.Random(3), [repo.head_sha()]
    for _ in range(20):
        random_tree(repo.root, rng)
        commits.append(repo.commit_all("random"))
    for base, tip in zip(commits, commits[1:], strict=False):
        raw = git(repo.root, "diff-tree", "-r", "--raw", "--no-abbrev", "--no-renames", base, tip)
        expected = sorted(line.removeprefix(":").replace("\t", " ").split(" ", 5) for line in raw.splitlines())
        found = [
            [entry.old_mode, entry.new_mode, entry.old_oid, entry.new_oid, entry.status, entry.path]
            for entry in repo.diff_entries(base, tip)
        ]
        assert sorted(found) == expected
        for path in ("", "a", "a/b c", "ü", "nothing"):
            below = ["--", path] if path else []
            listed = git(repo.root, "ls-tree", "-r", "-l", "--full-tree", tip, *below).splitlines()
            entries = [[*line.split("\t")[0].split(), line.split("\t")[1]] for line in listed]
            assert [
                [entry.mode, entry.kind, entry.oid, str(entry.size), entry.path] for entry in repo.ls_tree(tip, path)
            ] == entries


def test_trees_that_were_read_are_not_read_again(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo.root / "many").mkdir()
    for number in range(30):
        (repo.root / "many" / f"{number}").write_text("x")
    sha, read = repo.commit_all("Many"), list[str]()
    contents = repo._reader.contents
    monkeypatch.setattr(repo._reader, "contents", lambda names: [read.extend(names), contents(names)][1])
    expected = repo.ls_tree(sha)
    assert len(read) == 4  # the commit's tree by name, then root, modules and many
    assert repo.ls_tree(sha) == expected and len(read) == 5
    monkeypatch.setattr(git_reader, "_LARGE_TREE", 20)
    monkeypatch.setattr(git_reader, "_KEPT_TREES", 1)
    repo._trees.clear()
    read.clear()
    for _ in range(2):
        assert repo.ls_tree(sha) == expected and len(repo._trees) <= 1
    assert len(read) == 8, "neither large trees nor more than the limit are kept"
