"""Wrong input through the real command line: exit 2, one sentence with place and way out, nothing left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Lab, Shown
from tests.support.clusters import stand_in

FRUGAL = ("--profile", "smoke", "--rounds", "1", "--seed", "1")


def edited(lab: Lab, old: str, new: str) -> str:
    """The lab's env with one change, outside the search surface and outside git."""
    text = (lab.root / "env.yaml").read_text(encoding="utf-8")
    assert old in text
    path = lab.root.parent / "edited.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return str(path)


def refused(shown: Shown, *parts: str) -> None:
    assert shown.code == 2, shown
    lines = shown.err.strip().splitlines()
    assert len(lines) == 1, shown.err
    for part in (*parts, "Mend:"):
        assert part in lines[0], lines[0]
    assert "Traceback" not in shown.err


CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "overlapping bands": ("val: [1000000000,", "val: [999999999,", ("edited.yaml", "seed_policy", "overlap")),
    "an unknown band": ("  val: [", "  calibration: [5, 6]\n  val: [", ("seed_policy.calibration",)),
    "a band too high": ("2999999999]", "4294967296]", ("seed_policy", "2**32")),
    "p of one half": ("p: [0.005, 0.010]", "p: [0.5, 0.010]", ("noise", "(0, 1/2)")),
    "p of zero": ("p: [0.005, 0.010]", "p: [0.0, 0.010]", ("noise", "(0, 1/2)")),
    "a target that is not listed": ("target_p: 0.010", "target_p: 0.02", ("target_p",)),
    "an unknown key": ("backend: mwpm", "bakcend: mwpm", ("bakcend",)),
    "no such generator": ("rotated_memory_z", "rotated_memory_y", ("code", "task")),
    "not YAML": ("code:\n", "code: [\n", ("edited.yaml",)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_wrong_env(lab: Lab, name: str) -> None:
    old, new, parts = CASES[name]
    env = edited(lab, old, new)
    before = lab.files()
    refused(lab.autoqec("run", env, *FRUGAL), *parts)
    assert lab.files() == before


def file_env(lab: Lab, circuit: str | None) -> str:
    if circuit is not None:
        (lab.root.parent / "code.stim").write_text(circuit, encoding="utf-8")
    env = edited(
        lab,
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
def test_a_wrong_circuit_file(lab: Lab, circuit: str | None, parts: tuple[str, ...]) -> None:
    env = file_env(lab, circuit)
    before = lab.files()
    refused(lab.autoqec("run", env, *FRUGAL), *parts)
    assert lab.files() == before


def test_an_unknown_env_names_the_known_ones(lab: Lab) -> None:
    refused(lab.autoqec("run", "smoky", *FRUGAL), "smoky", "smoke", "surface_d5_depol")


def test_an_unknown_key_of_a_predecoder(lab: Lab) -> None:
    config = lab.root.parent / "config.yaml"
    config.write_text("type: mlp\n\nmlp:\n  hiden: 3\n", encoding="utf-8")
    before = lab.files()
    refused(lab.autoqec("run-round", "smoke", str(config), "out", "--profile", "smoke"), "config.yaml", "mlp.hiden")
    assert lab.files() == before


def test_an_unknown_key_of_the_baseline(lab: Lab) -> None:
    surface = lab.root / "autoqec/decoders/modules/predecoder.yaml"
    surface.write_text(surface.read_text(encoding="utf-8") + "\nattention: 3\n", encoding="utf-8")
    lab.git("commit", "-qam", "a knob that nobody knows")
    before = lab.files()
    refused(lab.autoqec("run", "env.yaml", *FRUGAL), "predecoder.yaml", "attention")
    assert lab.files() == before


def outside(lab: Lab) -> Lab:
    place = lab.root.parent / "nowhere"
    place.mkdir()
    return Lab(place, lab.env)


def test_not_a_git_repository(lab: Lab) -> None:
    there = outside(lab)
    for argv in (("run", "smoke", *FRUGAL), ("show",), ("reconcile", "20260101-000000")):
        refused(there.autoqec(*argv), "git", "autoqec init")
    assert not there.files()


def test_no_commit_yet(lab: Lab) -> None:
    there = outside(lab)
    there.git("init", "-q")
    refused(there.autoqec("run", "smoke", *FRUGAL), "commit")
    assert there.files() == {".git"}


def dirty(lab: Lab) -> None:
    surface = lab.root / "autoqec/decoders/modules/mlp.py"
    surface.write_text(surface.read_text(encoding="utf-8") + "\n# half an idea\n", encoding="utf-8")


def untracked(lab: Lab) -> None:
    (lab.root / "autoqec/decoders/modules/new.py").write_text("x = 1\n", encoding="utf-8")


@pytest.mark.parametrize("change", [dirty, untracked])
def test_a_dirty_search_surface(lab: Lab, change: Callable[[Lab], None]) -> None:
    change(lab)
    before = lab.files()
    refused(lab.autoqec("run", "env.yaml", *FRUGAL), "autoqec/decoders/modules", "git")
    assert lab.files() == before


def test_a_repository_without_a_search_surface(lab: Lab) -> None:
    lab.git("rm", "-rq", "autoqec")
    lab.git("commit", "-qm", "no surface")
    before = lab.files()
    refused(lab.autoqec("run", "env.yaml", *FRUGAL), "autoqec/decoders/modules")
    assert lab.files() == before


def test_runs_cannot_be_written(lab: Lab) -> None:
    runs = lab.root / "runs"
    if os.geteuid() == 0:  # root may write anywhere: a file in its place stops even root
        runs.write_text("in the way\n", encoding="utf-8")
    else:
        runs.mkdir(mode=0o500)
    before = lab.files()
    refused(lab.autoqec("run", "env.yaml", *FRUGAL), str(runs))
    assert lab.files() == before


@pytest.mark.parametrize("run", ["20260101-000000", "../../etc", "-", "20260101-000000/../..", "a\nb"])
def test_an_unknown_run(lab: Lab, run: str) -> None:
    before = lab.files()
    refused(lab.autoqec("run", f"--resume={run}"), "run", "autoqec show")
    refused(lab.autoqec("reconcile", "--", run), "autoqec show")
    refused(lab.autoqec("show", "--", run), "autoqec show")
    assert lab.files() == before


def test_an_unknown_round(lab: Lab) -> None:
    before = lab.files()
    refused(lab.autoqec("verify", "runs/20260101-000000/round_1"))
    assert lab.files() == before


@pytest.mark.parametrize("name", ["env.yaml", "full"])
def test_init_overwrites_nothing(lab: Lab, name: str) -> None:
    (lab.root / "full").mkdir()
    (lab.root / "full" / "mine").write_text("mine\n", encoding="utf-8")
    before = lab.files()
    refused(lab.autoqec("init", name), name)
    assert lab.files() == before


def test_a_detached_head_is_allowed_and_said(lab: Lab) -> None:
    lab.git("checkout", "-q", "--detach")
    shown = lab.autoqec("run", "env.yaml", *FRUGAL, "--dry-run")
    assert shown.code == 0 and "detached" in shown.err + shown.out


def test_a_dry_run_shows_the_profile_and_writes_nothing(lab: Lab) -> None:
    before = lab.files()
    shown = lab.autoqec("run", "smoke", *FRUGAL, "--dry-run", "--json")
    assert shown.code == 0 and shown.objects[0]["profile"]["name"] == "smoke"
    assert lab.files() == before


def test_jobs_that_cannot_be(lab: Lab, tmp_path: Path) -> None:
    """Found before the run exists: no SLURM, an option that is none, a partition that SLURM does not have."""
    before = lab.files()
    run = ("run", "env.yaml", *FRUGAL)
    refused(lab.autoqec(*run, "--slurm", "time=5"), "--executor slurm")
    (tmp_path / "bin").mkdir()
    for name in ("git", "env"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    alone = lab.autoqec(*run, "--executor", "slurm", PATH=str(tmp_path / "bin"))
    refused(alone, "`sbatch` is not on the PATH")
    cluster = stand_in(tmp_path / "fake")
    slurm = (*run, "--executor", "slurm")
    refused(lab.autoqec(*slurm, "--slurm", "speed=9", **cluster.env), "'speed=9'", "partition")
    refused(lab.autoqec(*slurm, "--slurm", "partition=nowhere", **cluster.env), "invalid partition", "nowhere")
    assert lab.files() == before and cluster.jobs() == {}


def test_threads_are_shared_out_among_rounds_on_one_machine(lab: Lab, tmp_path: Path) -> None:
    run = ("run", "env.yaml", *FRUGAL, "--parallel", "2", "--threads", "5", "--dry-run", "--json")
    assert lab.autoqec(*run).objects[-1]["threads"] == 2
    cluster = stand_in(tmp_path / "fake", cpus=8)
    plan = lab.autoqec(*run, "--executor", "slurm", "--slurm", "time=30", **cluster.env).objects[-1]
    assert plan["threads"] == 5 and plan["slurm"] == {"time": "30", "cpus": "5", "mem": "5000M"}
