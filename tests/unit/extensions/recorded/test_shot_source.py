"""Rounds of recorded shots: what they train and are validated on, and what their sandbox hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import PROFILES
from autoqec.errors import UsageError
from autoqec.extensions.recorded.env import open_checked
from autoqec.extensions.recorded.shot_source import RecordedRunShots
from autoqec.extensions.recorded.split import VisibleShots
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack
from autoqec.runner.evaluate import val_counts
from autoqec.runner.samplers import NearFailureSampler
from autoqec.runner.shot_source import shot_source
from autoqec.runner.training import TrainingBudget, phases
from autoqec.store.files import dump_config, load_env
from autoqec.store.layout import recorded_location, visible_shots
from autoqec.system.sandbox import SandboxBackend
from tests.support.envs import problem
from tests.support.recorded import provided, recorded_env
from tests.unit.runner.conftest import SMALL, Ran, config_for, make_agent
from tests.unit.runner.test_runner import copy_modules

TRIES = """
import os, pathlib
for place in PLACES:
    try:
        found = os.listdir(place) if os.path.isdir(place) else open(place, "rb").read()
    except OSError:
        continue
    raise RuntimeError(f"read {place}: {found!r}"[:300])
assert pathlib.Path(VISIBLE).is_dir()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[EnvSpec, Path]:
    """Return an env and a round directory beside which its shots are provided."""
    directory = tmp_path_factory.mktemp("recorded")
    device = problem(3, 0.03)
    round_dir = directory / "workspace" / "runs" / "20250101-000000" / "round_1"
    env = provided(recorded_env(directory, device=device), round_dir)
    round_dir.rmdir()
    return env, round_dir


def test_fine_tuning_and_validation_read_recorded_shots(recorded: tuple[EnvSpec, Path]) -> None:
    env, round_dir = recorded
    prob, shots = Problem.from_env(env), visible_shots(round_dir)
    agent = make_agent(prob)
    sampler = NearFailureSampler(prob, 64, 3, gap=6.0, recorded=shots)
    sampler.initialize(agent)
    samples, _ = sampler.obtain_samples(0)
    train, validation = (VisibleShots.open(shots, part, 24, 1) for part in ("train", "validation"))
    known = {row.tobytes() for row in train.first(len(train)).detection_events}
    assert {row.tobytes() for row in pack(samples.detections)} <= known
    simulated = NearFailureSampler(prob, 64, 3, gap=6.0, recorded=shots, simulated=True)
    simulated.initialize(agent)
    assert not {row.tobytes() for row in pack(simulated.obtain_samples(0)[0].detections)} <= known
    counts = val_counts(prob, agent, 100_000, recorded=shots)
    assert counts.shots == len(validation) == 700
    assert counts.errors_reference / 700 > 0.05  # the device's rate, which is far above the model's
    with pytest.raises(UsageError, match="recorded shots of the env are missing"):
        shot_source(prob)


def test_copies_are_used_again_but_not_for_other_shots(recorded: tuple[EnvSpec, Path], tmp_path: Path) -> None:
    env, round_dir = recorded
    other = recorded_env(tmp_path, shots=4000)
    copies = visible_shots(round_dir) / "train" / "observables.b8"
    before = copies.stat().st_mtime_ns
    data = Path(recorded_location(round_dir).read_text().strip())
    RecordedRunShots(env, open_checked(env, data)).provide(round_dir)
    assert copies.stat().st_mtime_ns == before
    second = load_env(other)[0]
    with pytest.raises(UsageError, match="belongs to other recorded shots"):
        RecordedRunShots(second, open_checked(second, tmp_path / "data")).provide(round_dir)


def test_config_selects_the_shots_of_fine_tuning(recorded: tuple[EnvSpec, Path]) -> None:
    env, round_dir = recorded
    prob, shots = Problem.from_env(env), visible_shots(round_dir)
    budget = TrainingBudget(256, 256)
    found = {}
    for choice in ("recorded", "simulated", None):
        dsl = parse_dsl({**SMALL, "training": {"finetune_shots": choice}})
        plan = phases(prob, dsl, PROFILES["smoke"], budget, 1, shots)
        found[choice] = [phase.sampler.source.simulated for phase in plan]
        assert ("finetune_shots" in dsl.config()["training"]) == (choice is not None)
    assert found["simulated"][1] and not found["recorded"][1] and not found[None][1]
    with pytest.raises(UsageError, match="no recorded shots"):
        wanted = parse_dsl({**SMALL, "training": {"finetune_shots": "recorded"}})
        phases(problem(3), wanted, PROFILES["smoke"], budget, 1)


def test_round_cannot_read_sealed_shots(
    recorded: tuple[EnvSpec, Path], tmp_path: Path, sandbox_backend: SandboxBackend
) -> None:
    env, round_dir = recorded
    data = Path(recorded_location(round_dir).read_text().strip())
    assert (data / "events1.b8").is_file()
    places = [str(data), str(data / "events1.b8"), str(recorded_location(round_dir))]
    tries = TRIES.replace("PLACES", repr(places)).replace("VISIBLE", repr(str(visible_shots(round_dir))))
    modules = copy_modules(tmp_path / "modules", at_top=tries)
    own = round_dir.with_name(f"round_{1 if sandbox_backend == 'bubblewrap' else 2}")
    ran = Ran(config_for(dump_config(env.dump()), own, modules_dir=modules))
    assert ran.metrics.status == "ok", ran.metrics.status_reason
    assert ran.metrics.val_shots == 700
