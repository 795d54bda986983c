"""Invalid input from the command line: exit 2, one error with location and hint, and no file written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult, Workspace
from tests.support.clusters import fake_slurm
from tests.support.shown import check_error

FRUGAL = ("--profile", "smoke", "--rounds", "1", "--seed", "1")


def edited(workspace: Workspace, old: str, new: str) -> str:
    """Write the env of the workspace with one change to a file outside git."""
    text = (workspace.root / "env.yaml").read_text(encoding="utf-8")
    assert old in text
    path = workspace.root.parent / "edited.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return str(path)


def refused(shown: CommandResult, *parts: str) -> None:
    assert shown.code == 2, shown
    check_error(shown.err, *parts, hint=True)


CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "overlapping bands": ("val: [1000000000,", "val: [999999999,", ("edited.yaml", "seed_policy", "overlap")),
    "an unknown band": ("  val: [", "  calibration: [5, 6]\n  val: [", ("seed_policy.calibration",)),
    "a band too high": ("2999999999]", "4294967296]", ("seed_policy", "2**32")),
    "p of one half": ("p: [0.005, 0.010]", "p: [0.5, 0.010]", ("noise", "(0, 1/2)")),
    "p of zero": ("p: [0.005, 0.010]", "p: [0.0, 0.010]", ("noise", "(0, 1/2)")),
    "a target that is not listed": ("target_p: 0.010", "target_p: 0.02", ("target_p",)),
    "an unknown key": ("backend: mwpm", "bakcend: mwpm", ("bakcend",)),
    "no such generator": ("rotated_memory_z", "rotated_memory_y", ("code", "task")),
    "a limit below every network": (
        "max_params: 200000",
        "max_params: 1",
        ("constraints.max_params", "the smallest network for this code has n_params = 34"),
    ),
    "not YAML": ("code:\n", "code: [\n", ("edited.yaml",)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_invalid_env_is_rejected(workspace: Workspace, name: str) -> None:
    old, new, parts = CASES[name]
    env = edited(workspace, old, new)
    before = workspace.files()
    refused(workspace.autoqec("run", env, *FRUGAL), *parts)
    assert workspace.files() == before


def file_env(workspace: Workspace, circuit: str | None) -> str:
    if circuit is not None:
        (workspace.root.parent / "code.stim").write_text(circuit, encoding="utf-8")
    env = edited(
        workspace,
        "noise:\n  model: circuit_depolarizing\n  p: [0.005, 0.010]\n  target_p: 0.010",
        "noise:\n  model: from_file",
    )
    text = Path(env).read_text(encoding="utf-8")
    start, end = text.index("code:"), text.index("# All four")
    Path(env).write_text(
        text[:start] + "code:\n  kind: stim_file\n  path: code.stim\n\n" + text[end:], encoding="utf-8"
    )
    return env


HYPEREDGE = """
R 0 1 2 3 4 5
CORRELATED_ERROR(0.01) X0 X1 X2 X3 X4 X5
M 0 1 2 3 4 5
DETECTOR rec[-6]
DETECTOR rec[-5]
DETECTOR rec[-4]
DETECTOR rec[-3]
DETECTOR rec[-2]
OBSERVABLE_INCLUDE(0) rec[-1]
"""


@pytest.mark.parametrize(
    ("circuit", "parts"),
    [
        (None, ("code.stim", "cannot be read")),
        ("CNOTT 0 1\n", ("code", "stim")),
        ("R 0\nX_ERROR(0.1) 0\nM 0\nDETECTOR rec[-1]\n", ("observable",)),
        (HYPEREDGE, ("graph",)),
    ],
    ids=["missing", "not stim", "no observable", "no graph"],
)
def test_invalid_circuit_file_is_rejected(workspace: Workspace, circuit: str | None, parts: tuple[str, ...]) -> None:
    env = file_env(workspace, circuit)
    before = workspace.files()
    refused(workspace.autoqec("run", env, *FRUGAL), *parts)
    assert workspace.files() == before


def test_unknown_env_error_lists_known_envs(workspace: Workspace) -> None:
    refused(workspace.autoqec("run", "smoky", *FRUGAL), "smoky", "smoke", "surface_d5_depol")


def test_unknown_config_key_is_rejected(workspace: Workspace) -> None:
    config = workspace.root.parent / "config.yaml"
    config.write_text("type: mlp\n\nmlp:\n  hiden: 3\n", encoding="utf-8")
    before = workspace.files()
    refused(
        workspace.autoqec("run-round", "smoke", str(config), "out", "--profile", "smoke"), "config.yaml", "mlp.hiden"
    )
    assert workspace.files() == before


def test_unknown_key_in_baseline_config_is_rejected(workspace: Workspace) -> None:
    config = workspace.root / "autoqec/decoders/modules/predecoder.yaml"
    config.write_text(config.read_text(encoding="utf-8") + "\nattention: 3\n", encoding="utf-8")
    workspace.git("commit", "-qam", "unknown key")
    before = workspace.files()
    refused(workspace.autoqec("run", "env.yaml", *FRUGAL), "predecoder.yaml", "attention")
    assert workspace.files() == before


def outside(workspace: Workspace) -> Workspace:
    place = workspace.root.parent / "nowhere"
    place.mkdir()
    return Workspace(place, workspace.env)


def test_commands_outside_repository_suggest_init(workspace: Workspace) -> None:
    there = outside(workspace)
    for argv in (("run", "smoke", *FRUGAL), ("show",), ("reconcile", "20260101-000000")):
        refused(there.autoqec(*argv), "git", "autoqec init")
    assert not there.files()


def test_repository_without_commit_is_rejected(workspace: Workspace) -> None:
    there = outside(workspace)
    there.git("init", "-q")
    refused(there.autoqec("run", "smoke", *FRUGAL), "commit")
    assert there.files() == {".git"}


def dirty(workspace: Workspace) -> None:
    module = workspace.root / "autoqec/decoders/modules/mlp.py"
    module.write_text(module.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")


def untracked(workspace: Workspace) -> None:
    (workspace.root / "autoqec/decoders/modules/new.py").write_text("x = 1\n", encoding="utf-8")


@pytest.mark.parametrize("change", [dirty, untracked])
def test_uncommitted_modules_are_rejected(workspace: Workspace, change: Callable[[Workspace], None]) -> None:
    change(workspace)
    before = workspace.files()
    refused(workspace.autoqec("run", "env.yaml", *FRUGAL), "autoqec/decoders/modules", "git")
    assert workspace.files() == before


def test_repository_without_modules_is_rejected(workspace: Workspace) -> None:
    workspace.git("rm", "-rq", "autoqec")
    workspace.git("commit", "-qm", "remove modules")
    before = workspace.files()
    refused(workspace.autoqec("run", "env.yaml", *FRUGAL), "autoqec/decoders/modules")
    assert workspace.files() == before


def test_unwritable_runs_directory_is_rejected(workspace: Workspace) -> None:
    runs = workspace.root / "runs"
    if os.geteuid() == 0:  # root may write anywhere, but not below a file
        runs.write_text("in the way\n", encoding="utf-8")
    else:
        runs.mkdir(mode=0o500)
    before = workspace.files()
    refused(workspace.autoqec("run", "env.yaml", *FRUGAL), str(runs))
    assert workspace.files() == before


@pytest.mark.parametrize("run", ["20260101-000000", "../../etc", "-", "20260101-000000/../..", "a\nb"])
def test_unknown_run_is_rejected(workspace: Workspace, run: str) -> None:
    before = workspace.files()
    refused(workspace.autoqec("run", f"--resume={run}"), "run", "autoqec show")
    refused(workspace.autoqec("reconcile", "--", run), "autoqec show")
    refused(workspace.autoqec("show", "--", run), "autoqec show")
    assert workspace.files() == before


def test_unknown_round_is_rejected(workspace: Workspace) -> None:
    before = workspace.files()
    refused(workspace.autoqec("verify", "runs/20260101-000000/round_1"))
    assert workspace.files() == before


@pytest.mark.parametrize("name", ["env.yaml", "full"])
def test_init_rejects_nonempty_target(workspace: Workspace, name: str) -> None:
    (workspace.root / "full").mkdir()
    (workspace.root / "full" / "mine").write_text("mine\n", encoding="utf-8")
    before = workspace.files()
    refused(workspace.autoqec("init", name), name)
    assert workspace.files() == before


def test_detached_head_is_allowed_with_a_note(workspace: Workspace) -> None:
    workspace.git("checkout", "-q", "--detach")
    shown = workspace.autoqec("run", "env.yaml", *FRUGAL, "--dry-run")
    assert shown.code == 0 and "detached" in shown.err + shown.out


def test_start_in_a_linked_worktree_names_its_baseline(workspace: Workspace, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    workspace.git("worktree", "add", "-q", str(linked))
    shown = Workspace(linked, workspace.env).autoqec("run", "env.yaml", *FRUGAL, "--dry-run")
    assert shown.code == 0 and f"{linked} is a linked worktree" in shown.out, shown.out


def test_filter_without_its_program_is_found_before_git_fails(workspace: Workspace) -> None:
    """`git status` also runs the filter, on files that changed."""
    workspace.git("config", "filter.lfs.process", "git-lfs-that-is-missing filter-process")
    workspace.git("config", "filter.lfs.required", "true")
    (workspace.root / ".gitattributes").write_text("*.py filter=lfs\n")
    (workspace.root / "autoqec/decoders/modules/mlp.py").touch()
    refused(workspace.autoqec("run", "env.yaml", *FRUGAL, "--dry-run"), "filter `lfs`", "install git-lfs")


def test_dry_run_shows_profile_and_writes_nothing(workspace: Workspace) -> None:
    before = workspace.files()
    shown = workspace.autoqec("run", "smoke", *FRUGAL, "--dry-run", "--json")
    assert shown.code == 0 and shown.objects[0]["profile"]["name"] == "smoke"
    assert workspace.files() == before


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_experiment_longer_than_memory_is_rejected_before_it_is_built(
    workspace: Workspace, more: tuple[str, ...]
) -> None:
    text = (workspace.root / "env.yaml").read_text(encoding="utf-8")
    long = text.replace("distance: 3", "distance: 11").replace("rounds: 3", "rounds: 10000")
    assert long.count("distance: 11") == long.count("rounds: 10000") == 1
    (workspace.root.parent / "long.yaml").write_text(long, encoding="utf-8")
    before = workspace.files()
    shown = workspace.autoqec("run", str(workspace.root.parent / "long.yaml"), *FRUGAL, *more)
    refused(shown, "needs about", "more than the 4 GB that profile `smoke` allows", "fewer rounds", "--window")
    assert workspace.files() == before


def test_invalid_slurm_options_are_rejected(workspace: Workspace, tmp_path: Path) -> None:
    """No SLURM, an unknown option, an unknown partition: each is found before the run exists."""
    before = workspace.files()
    run = ("run", "env.yaml", *FRUGAL)
    refused(workspace.autoqec(*run, "--slurm", "time=5"), "--executor slurm")
    (tmp_path / "bin").mkdir()
    for name in ("git", "env"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    alone = workspace.autoqec(*run, "--executor", "slurm", PATH=str(tmp_path / "bin"))
    refused(alone, "`sbatch` is not on the PATH")
    cluster = fake_slurm(tmp_path / "fake")
    slurm = (*run, "--executor", "slurm")
    refused(workspace.autoqec(*slurm, "--slurm", "speed=9", **cluster.env), "'speed=9'", "partition")
    refused(workspace.autoqec(*slurm, "--slurm", "partition=nowhere", **cluster.env), "invalid partition", "nowhere")
    refused(workspace.autoqec(*run, "--container", "a.sif"), "--container", "--executor slurm")
    refused(workspace.autoqec(*slurm, "--container", "a.sif", **cluster.env), "`apptainer`", "--container")
    (tmp_path / "fake/bin/apptainer").symlink_to("/bin/true")
    refused(workspace.autoqec(*slurm, "--container", "a.sif", **cluster.env), "a.sif cannot be read", "--container")
    assert workspace.files() == before and cluster.jobs() == {}


def test_local_rounds_share_threads(workspace: Workspace, tmp_path: Path) -> None:
    run = ("run", "env.yaml", *FRUGAL, "--parallel", "2", "--threads", "5", "--dry-run", "--json")
    assert workspace.autoqec(*run).objects[-1]["threads"] == 2
    cluster = fake_slurm(tmp_path / "fake", cpus=8)
    plan = workspace.autoqec(*run, "--executor", "slurm", "--slurm", "time=30", **cluster.env).objects[-1]
    assert plan["threads"] == 5 and plan["slurm"] == {"time": "30", "cpus": "5", "mem": "5000M"}
