"""Branches of rounds: allowed contents, compositions, and salvage after a crash."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.dsl import flatten, unflatten
from autoqec.contracts.messages import CoderResponse, FileEdit
from autoqec.errors import RoundError
from autoqec.ideators import space
from autoqec.orchestrator import worktree
from autoqec.store.files import dump_config
from autoqec.store.layout import EDITABLE_MODULES, RunLayout, pointer_on_branch
from autoqec.system.git import MergeConflictError, Repo
from tests.support import rounds

ENV = Path(__file__).parents[3] / "autoqec/envs/builtin/smoke.yaml"
BASE = space.TEMPLATES[0].config


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    make_workspace(tmp_path / "workspace", ENV)
    return Repo.discover(tmp_path / "workspace")


def layout(repo: Repo) -> RunLayout:
    return RunLayout(repo.root, rounds.RUN_ID)


def edit(**keys: object) -> CoderResponse:
    flat = flatten(BASE) | {key.replace("__", "."): value for key, value in keys.items()}
    config = unflatten(flat)
    return CoderResponse(
        dsl_config=config,
        edits=(FileEdit(path="predecoder.yaml", text=dump_config(config)),),
        commit_message="an idea",
    )


def grown(repo: Repo, number: int, edits: CoderResponse, tips: tuple[str, ...] = (), base: str = "") -> str:
    base_sha = base or repo.head_sha()
    planned = rounds.planned(number, base_sha=base_sha)
    return worktree.create(repo, layout(repo), planned, tips, edits)


def test_code_commit_names_the_attempt_and_changes_only_editable_modules(repo: Repo) -> None:
    sha = grown(repo, 1, edit(mlp__hidden=64))
    assert repo.commit_info(sha).trailers[worktree.TRAILER] == "attempt-1"
    assert [entry.path for entry in repo.diff_entries(repo.head_sha(), sha)] == [f"{EDITABLE_MODULES}/predecoder.yaml"]
    assert repo.rev_parse(f"refs/heads/{rounds.branch(1)}") == sha
    assert repo.dirty_paths() == []


def test_branch_deleted_during_measurement_is_restored_for_its_pointer(repo: Repo) -> None:
    sha = grown(repo, 1, edit(mlp__hidden=64))
    planned, ref = rounds.planned(1, base_sha=repo.head_sha()), f"refs/heads/{rounds.branch(1)}"
    written = layout(repo).worktree(planned.branch) / pointer_on_branch(1)
    written.parent.mkdir()
    written.write_text("{}")
    subprocess.run(["git", "update-ref", "-d", ref], cwd=repo.root, check=True)
    tip = worktree.commit_pointer(repo, layout(repo), planned, sha)
    assert repo.rev_parse(ref) == tip and repo.commit_info(tip).parents == (sha,)
    assert [entry.path for entry in repo.diff_entries(sha, tip)] == [pointer_on_branch(1)]


def test_composition_has_both_changes_and_both_parents(repo: Repo) -> None:
    first, second = grown(repo, 1, edit(mlp__hidden=64)), grown(repo, 2, edit(training__batch_size=2048))
    nothing = edit().model_copy(update={"edits": ()})
    sha = grown(repo, 3, nothing, (second,), base=first)
    assert repo.commit_info(sha).parents == (first, second)
    text = (repo.show_file(sha, f"{EDITABLE_MODULES}/predecoder.yaml") or b"").decode()
    assert "hidden: 64" in text and "batch_size: 2048" in text


def test_conflict_names_its_files_and_changes_nothing(repo: Repo) -> None:
    first, second = grown(repo, 1, edit(mlp__hidden=64)), grown(repo, 2, edit(mlp__hidden=65))
    with pytest.raises(MergeConflictError) as conflict:
        grown(repo, 3, edit().model_copy(update={"edits": ()}), (second,), base=first)
    assert conflict.value.files == (f"{EDITABLE_MODULES}/predecoder.yaml",)
    assert repo.rev_parse(f"refs/heads/{rounds.branch(3)}") is None
    assert not layout(repo).worktree(rounds.branch(3)).exists()


@pytest.mark.parametrize(
    "path",
    ["../../../setup.py", "/etc/passwd", ".gitattributes", "conftest.py", "sitecustomize.py", "x.pth", "x.so",
     "a/../b.py", "A.py", "x y.py", "deep/er/est/x.py", "", "x.py\n"],
)  # fmt: skip
def test_forbidden_edit_is_refused_before_git_changes(repo: Repo, path: str) -> None:
    proposal = edit().model_copy(update={"edits": (FileEdit(path=path, text="x = 1\n"),)})
    with pytest.raises(RoundError) as refused:
        grown(repo, 1, proposal)
    assert refused.value.status == "compile_error"
    assert repo.refs("refs/heads/exp") == {}


def test_oversized_edit_is_refused(repo: Repo) -> None:
    big = FileEdit.model_construct(path="big.py", text="#" * (worktree.MAX_FILE_BYTES + 1))
    with pytest.raises(RoundError, match="bytes"):
        grown(repo, 1, edit().model_copy(update={"edits": (big,)}))


def committed(repo: Repo, *paths: str) -> str:
    """Commit the content that a hostile process wrote into a round's worktree."""
    return repo.commit(layout(repo).worktree(rounds.branch(1)), rounds.branch(1), paths, "rogue")


def test_guard_refuses_links_submodules_and_other_paths(repo: Repo) -> None:
    base = grown(repo, 1, edit())
    checkout = layout(repo).worktree(rounds.branch(1))
    modules = checkout / EDITABLE_MODULES
    os.symlink("/etc/passwd", modules / "secrets.py")
    with pytest.raises(RoundError, match="not a regular file"):
        worktree.check_commit(repo, base, committed(repo, EDITABLE_MODULES))
    (modules / "secrets.py").unlink()
    (checkout / "env.yaml").write_text("name: easier\n")
    with pytest.raises(RoundError, match="outside the editable modules"):
        worktree.check_commit(repo, base, committed(repo, EDITABLE_MODULES, "env.yaml"))


def test_guard_refuses_an_executable(repo: Repo) -> None:
    base = grown(repo, 1, edit())
    path = layout(repo).worktree(rounds.branch(1)) / EDITABLE_MODULES / "run.py"
    path.write_text("x = 1\n")
    path.chmod(0o755)
    with pytest.raises(RoundError, match="mode 100755"):
        worktree.check_commit(repo, base, committed(repo, EDITABLE_MODULES))


def test_config_only_change_is_detected(repo: Repo) -> None:
    grown(repo, 1, edit(mlp__hidden=64))
    modules = layout(repo).worktree(rounds.branch(1)) / EDITABLE_MODULES
    assert worktree.is_config_only(modules)
    (modules / "extra.py").write_text("x = 1\n")
    assert not worktree.is_config_only(modules)
    (modules / "extra.py").unlink()
    os.symlink("mlp.py", modules / "linked.py")
    assert not worktree.is_config_only(modules)


def test_removal_keeps_uncommitted_changes(repo: Repo) -> None:
    grown(repo, 1, edit())
    checkout = layout(repo).worktree(rounds.branch(1))
    (checkout / EDITABLE_MODULES / "precious.py").write_text("answer = 42\n")
    kept = worktree.salvage_and_remove_worktree(repo, layout(repo), checkout)
    assert kept is not None and "answer = 42" in kept.read_text()
    assert not checkout.exists() and repo.worktrees() == []


def test_removal_of_a_clean_checkout_keeps_nothing(repo: Repo) -> None:
    grown(repo, 1, edit())
    assert worktree.salvage_and_remove_worktree(repo, layout(repo), layout(repo).worktree(rounds.branch(1))) is None
    assert not layout(repo).salvage.exists()


def test_directory_unknown_to_git_is_moved_aside(repo: Repo) -> None:
    checkout = layout(repo).worktree(rounds.branch(1))
    (checkout / "deep").mkdir(parents=True)
    (checkout / "deep" / "note").write_text("mine")
    assert worktree.leftovers(repo, layout(repo), [rounds.branch(1)]) == (checkout,)
    kept = worktree.salvage_and_remove_worktree(repo, layout(repo), checkout)
    assert kept is not None and (kept / "deep" / "note").read_text() == "mine"


def test_checkouts_of_another_run_are_not_touched(repo: Repo) -> None:
    other_run = RunLayout(repo.root, f"{rounds.RUN_ID}-2")
    branch = other_run.branch(1, "try")
    repo.worktree_add(other_run.worktree(branch), branch, repo.head_sha())
    assert worktree.leftovers(repo, layout(repo), [rounds.branch(1)]) == ()
