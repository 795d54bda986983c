"""Branches of rounds: what may stand on them, compositions, and the salvage of what died."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
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
    make_workspace(tmp_path / "lab", ENV)
    return Repo.discover(tmp_path / "lab")


def layout(repo: Repo) -> RunLayout:
    return RunLayout(repo.root, rounds.RUN_ID)


def edit(**keys: object) -> CoderResponse:
    flat = space.flatten(BASE) | {key.replace("__", "."): value for key, value in keys.items()}
    config = space.unflatten(flat)
    return CoderResponse(
        dsl_config=config,
        edits=(FileEdit(path="predecoder.yaml", text=dump_config(config)),),
        commit_message="an idea",
    )


def grown(repo: Repo, number: int, edits: CoderResponse, tips: tuple[str, ...] = (), base: str = "") -> str:
    base_sha = base or repo.head_sha()
    planned = rounds.planned(number, base_sha=base_sha)
    return worktree.create(repo, layout(repo), planned, tips, edits)


def test_the_code_commit_carries_the_attempt_and_touches_the_surface_alone(repo: Repo) -> None:
    sha = grown(repo, 1, edit(mlp__hidden=64))
    assert repo.commit_trailers(sha)[worktree.TRAILER] == "attempt-1"
    assert [entry.path for entry in repo.diff_entries(repo.head_sha(), sha)] == [f"{EDITABLE_MODULES}/predecoder.yaml"]
    assert repo.rev_parse(f"refs/heads/{rounds.branch(1)}") == sha
    assert repo.dirty_paths() == []


def test_a_branch_deleted_while_it_was_measured_is_put_back_for_its_pointer(repo: Repo) -> None:
    sha = grown(repo, 1, edit(mlp__hidden=64))
    planned, ref = rounds.planned(1, base_sha=repo.head_sha()), f"refs/heads/{rounds.branch(1)}"
    written = layout(repo).worktree(planned.branch) / pointer_on_branch(1)
    written.parent.mkdir()
    written.write_text("{}")
    subprocess.run(["git", "update-ref", "-d", ref], cwd=repo.root, check=True)
    tip = worktree.commit_pointer(repo, layout(repo), planned, sha)
    assert repo.rev_parse(ref) == tip and repo.parents(tip) == (sha,)
    assert [entry.path for entry in repo.diff_entries(sha, tip)] == [pointer_on_branch(1)]


def test_a_composition_holds_both_changes_and_both_parents(repo: Repo) -> None:
    one, two = grown(repo, 1, edit(mlp__hidden=64)), grown(repo, 2, edit(training__batch_size=2048))
    nothing = edit().model_copy(update={"edits": ()})
    sha = grown(repo, 3, nothing, (two,), base=one)
    assert repo.parents(sha) == (one, two)
    text = (repo.show_file(sha, f"{EDITABLE_MODULES}/predecoder.yaml") or b"").decode()
    assert "hidden: 64" in text and "batch_size: 2048" in text


def test_a_conflict_names_its_files_and_leaves_nothing(repo: Repo) -> None:
    one, two = grown(repo, 1, edit(mlp__hidden=64)), grown(repo, 2, edit(mlp__hidden=65))
    with pytest.raises(MergeConflictError) as conflict:
        grown(repo, 3, edit().model_copy(update={"edits": ()}), (two,), base=one)
    assert conflict.value.files == (f"{EDITABLE_MODULES}/predecoder.yaml",)
    assert repo.rev_parse(f"refs/heads/{rounds.branch(3)}") is None
    assert not layout(repo).worktree(rounds.branch(3)).exists()


@pytest.mark.parametrize(
    "path",
    ["../../../setup.py", "/etc/passwd", ".gitattributes", "conftest.py", "sitecustomize.py", "x.pth", "x.so",
     "a/../b.py", "A.py", "x y.py", "deep/er/est/x.py", "", "x.py\n"],
)  # fmt: skip
def test_an_edit_that_may_not_be_is_refused_before_git_is_touched(repo: Repo, path: str) -> None:
    said = edit().model_copy(update={"edits": (FileEdit(path=path, text="x = 1\n"),)})
    with pytest.raises(RoundError) as refused:
        grown(repo, 1, said)
    assert refused.value.status == "compile_error"
    assert repo.refs("refs/heads/exp") == {}


def test_an_edit_that_is_too_large_is_refused(repo: Repo) -> None:
    big = FileEdit.model_construct(path="big.py", text="#" * (worktree.MAX_FILE_BYTES + 1))
    with pytest.raises(RoundError, match="bytes"):
        grown(repo, 1, edit().model_copy(update={"edits": (big,)}))


def committed(repo: Repo, *paths: str) -> str:
    """What a rogue writer put into a round's worktree, committed."""
    return repo.commit(layout(repo).worktree(rounds.branch(1)), list(paths), "rogue")


def test_the_guard_refuses_what_git_could_carry(repo: Repo) -> None:
    base = grown(repo, 1, edit())
    place = layout(repo).worktree(rounds.branch(1))
    surface = place / EDITABLE_MODULES
    os.symlink("/etc/passwd", surface / "secrets.py")
    with pytest.raises(RoundError, match="not a regular file"):
        worktree.check_commit(repo, base, committed(repo, EDITABLE_MODULES))
    (surface / "secrets.py").unlink()
    (place / "env.yaml").write_text("name: easier\n")
    with pytest.raises(RoundError, match="outside the editable modules"):
        worktree.check_commit(repo, base, committed(repo, EDITABLE_MODULES, "env.yaml"))


def test_the_guard_refuses_an_executable(repo: Repo) -> None:
    base = grown(repo, 1, edit())
    path = layout(repo).worktree(rounds.branch(1)) / EDITABLE_MODULES / "run.py"
    path.write_text("x = 1\n")
    path.chmod(0o755)
    with pytest.raises(RoundError, match="mode 100755"):
        worktree.check_commit(repo, base, committed(repo, EDITABLE_MODULES))


def test_only_the_config_differs_or_it_does_not(repo: Repo) -> None:
    grown(repo, 1, edit(mlp__hidden=64))
    surface = layout(repo).worktree(rounds.branch(1)) / EDITABLE_MODULES
    assert worktree.is_config_only(surface)
    (surface / "extra.py").write_text("x = 1\n")
    assert not worktree.is_config_only(surface)
    (surface / "extra.py").unlink()
    os.symlink("mlp.py", surface / "linked.py")
    assert not worktree.is_config_only(surface)


def test_removal_keeps_what_was_not_committed(repo: Repo) -> None:
    grown(repo, 1, edit())
    place = layout(repo).worktree(rounds.branch(1))
    (place / EDITABLE_MODULES / "precious.py").write_text("answer = 42\n")
    kept = worktree.salvage_and_remove_worktree(repo, layout(repo), place)
    assert kept is not None and "answer = 42" in kept.read_text()
    assert not place.exists() and repo.worktrees() == []


def test_removal_of_a_clean_checkout_keeps_nothing(repo: Repo) -> None:
    grown(repo, 1, edit())
    assert worktree.salvage_and_remove_worktree(repo, layout(repo), layout(repo).worktree(rounds.branch(1))) is None
    assert not layout(repo).salvage.exists()


def test_a_directory_that_git_does_not_know_is_moved_aside_whole(repo: Repo) -> None:
    place = layout(repo).worktree(rounds.branch(1))
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "note").write_text("mine")
    assert worktree.leftovers(repo, layout(repo), [rounds.branch(1)]) == (place,)
    kept = worktree.salvage_and_remove_worktree(repo, layout(repo), place)
    assert kept is not None and (kept / "deep" / "note").read_text() == "mine"


def test_another_runs_checkouts_are_left_alone(repo: Repo) -> None:
    twin = RunLayout(repo.root, f"{rounds.RUN_ID}-2")
    branch = twin.branch(1, "try")
    repo.worktree_add(twin.worktree(branch), branch, repo.head_sha())
    assert worktree.leftovers(repo, layout(repo), [rounds.branch(1)]) == ()
