"""Checks before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import TrainingConfig
from autoqec.contracts.profiles import PROFILES, profile_of
from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import UsageError
from autoqec.locate import BUILTIN
from autoqec.orchestrator.run import NetworkOptions
from autoqec.orchestrator.run_checks import check, check_env
from autoqec.orchestrator.run_request import RunRequest
from autoqec.qec import weighted_mwpm
from autoqec.qec.problem import Problem
from autoqec.qec.problem_memory import MODEL
from autoqec.runner.round_memory import RoundMemory
from autoqec.store.files import dump_config, load_env
from autoqec.system import memory
from autoqec.system.git import Repo
from tests.support.clusters import fake_slurm
from tests.support.envs import surface, surface_family
from tests.support.starts import check_start

TWO = {"name": "two", "code": {"kind": "dem_file", "path": "two.dem"}, "noise": {"model": "from_file"}}
CONFIG = {"type": "mlp", "mlp": {"hidden": 8}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smoke", NetworkOptions("other_sector", gate_available=True)),
        ("bb72_circuit", NetworkOptions("other_sector", gate_available=False)),
    ],
)
def test_network_options_follow_from_the_env(name: str, expected: NetworkOptions) -> None:
    assert check_env(load_env(BUILTIN / f"{name}.yaml")[0], CONFIG, RunSpec()) == expected


@pytest.mark.parametrize(("env", "here", "noted"), [("smoke", True, 1), ("smoke", False, 0), ("bb72_circuit", True, 0)])
def test_a_run_without_the_extension_says_so_once(
    env: str,
    here: bool,
    noted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli(group, ["init", str(tmp_path / "ws")]) == 0
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.setattr(weighted_mwpm, "compiled_soft_matcher", lambda: None)
    for name, value in fake_slurm(tmp_path / "fake").env.items():
        monkeypatch.setenv(name, value)
    spec = RunSpec(profile="smoke", executor="local" if here else "slurm")
    start = check(RunRequest(Repo.discover("."), spec, env_path=BUILTIN / f"{env}.yaml"))
    assert len([note for note in start.notes if "C extension is not built" in note]) == noted


@pytest.mark.parametrize("key", ["gate", "gate.share"])
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("bb72_circuit", "backend `bposd` does not have"),
        ("two_observables", "needs one observable, this circuit has 2"),
    ],
)
def test_a_pinned_gate_without_a_gap_starts_no_run(
    env: str, message: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = BUILTIN / f"{env}.yaml"
    assert run_cli(group, ["init", str(tmp_path / "ws")]) == 0
    monkeypatch.chdir(tmp_path / "ws")
    if env == "two_observables":
        dem = "error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1 L1\ndetector D1\n"
        (tmp_path / "two.dem").write_text(dem)
        path = tmp_path / "two.yaml"
        path.write_text(dump_config(TWO | {"seed_policy": surface().seed_policy.dump()}))
    with pytest.raises(UsageError, match=message) as error:
        check_start(path, ".", profile="smoke", pins={key: 0.5})
    assert error.value.hint == f"leave out --pin {key}"
    assert check_start(path, ".", profile="smoke", pins={"gate": None, "head": "linear"}).env.name == path.stem


def test_a_machine_with_too_little_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of both processes count; the problem is not built."""
    env = surface(5, rounds=1000)
    needed = RoundMemory.of(env, TrainingConfig(), profile_of("dev"))
    total = sum((*needed.run.values(), *needed.training.values()))
    monkeypatch.setattr(memory, "available_bytes", lambda: int(total - 1e6))
    monkeypatch.setattr(Problem, "from_env", None)
    with pytest.raises(UsageError, match="GB of memory .*, 0.001 GB more than the .* GB available") as caught:
        check_env(env, CONFIG, RunSpec())
    assert caught.value.location == "env `surface_d5_z`" and "fewer rounds" in str(caught.value.hint)


def test_training_in_jobs_needs_no_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with the memory of the run alone passes; the limit of the profile holds for the jobs."""
    env, dev, in_jobs = surface(3), profile_of("dev"), RunSpec(executor="slurm")
    needed = RoundMemory.of(env, TrainingConfig(), dev)
    own = sum((*needed.run.values(), *needed.build.values()))
    assert sum(needed.training.values()) > 2 * own
    monkeypatch.setattr(memory, "available_bytes", lambda: own)
    assert check_env(env, CONFIG, in_jobs).gate_available
    with pytest.raises(UsageError, match="GB available"):
        check_env(env, CONFIG, RunSpec())
    monkeypatch.setattr(memory, "available_bytes", lambda: own - 1)
    with pytest.raises(UsageError, match="building them .* GB available"):
        check_env(env, CONFIG, in_jobs)
    small = dev.model_copy(update={"memory_gb": 0.9 * sum(needed.training.values()) / memory.GB})
    monkeypatch.setitem(PROFILES, "dev", small)
    with pytest.raises(UsageError, match="that profile `dev` allows a round"):
        check_env(env, CONFIG, in_jobs)


def test_every_circuit_of_a_family_needs_memory() -> None:
    one, dev = surface(3, rounds=200), profile_of("dev")
    both = surface_family((3, 200), (3, 100), p=(0.01, 0.02))
    found = [RoundMemory.of(env, TrainingConfig(), dev) for env in (one, both)]
    models = [[sum(size for name, size in part.items() if MODEL in name) for part in (each.run, each.training)]
              for each in found]  # fmt: skip
    assert models[1][0] == pytest.approx(2.5 * models[0][0], rel=0.05)  # two p of the target, and half of it
    assert models[1][1] > 1.2 * models[0][1]
