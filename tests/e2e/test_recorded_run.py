"""A run on recorded shots, from the env file to a verdict on sealed blocks and its replay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import Event, ShotsRead, ignore
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import UsageError
from autoqec.locate import builtin_envs
from autoqec.orchestrator import verify_round
from autoqec.orchestrator.archive import ReplayPlan, package_run, publish_secret, replay_archive
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.run_options import request_run
from autoqec.store.layout import recorded_location, visible_shots
from autoqec.store.round_files import read_contract
from autoqec.system.git import Repo
from tests.support.envs import problem
from tests.support.recorded import recorded_env
from tests.support.starts import resume_run, start_run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a workspace, with shots of a device and their env beside it, and a profile of a few seconds."""
    few = {"train_shots": 4096, "finetune_shots": 192, "val_shots": 700, "round_wallclock_s": 900}
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update={**few, "judge_wallclock_s": 900}))
    make_workspace(tmp_path / "workspace", builtin_envs()["smoke"])
    recorded_env(tmp_path / "device", device=problem(3, 0.02))
    return tmp_path / "workspace"


def test_a_run_ends_in_a_verdict_on_sealed_blocks(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env_file = workspace.parent / "device" / "env.yaml"
    with start_run(env_file, workspace, "smoke", 1) as run:
        run_rounds(run, 1)
        layout = run.layout
    place = layout.round(1)
    assert recorded_location(place.dir).read_text().strip() == str(env_file.parent / "data")
    assert sorted(path.name for path in visible_shots(place.dir).iterdir()) == ["train", "validation"]
    repo = Repo.discover(workspace)
    if not place.report_json.exists():
        verify_round.verify_or_replay(layout, repo, 1, print)
    report = read_contract(place.report_json, VerifyReport)
    assert report is not None and report.recorded is not None and report.test is not None
    assert (report.recorded.first_block, report.recorded.blocks, report.recorded.blocks_left) == (42, 14, 14)
    assert report.verdict == "VERIFIED" or report.claim.startswith("Nothing is claimed")
    tests = [json.loads(line) for line in layout.attempts.read_text().splitlines()]
    assert [line["attempt_index"] for line in tests if "attempt_index" in line] == [1]
    assert verify_round.replay(layout, repo, 1, print).agrees
    publish_secret(layout, repo)
    archive = workspace.parent / "run.tar"
    package_run(layout, repo, archive)
    capsys.readouterr()
    place = check_replay_elsewhere(archive, env_file.parent / "data", workspace.parent / "elsewhere")
    moved = env_file.parent / "moved"
    assert run_cli(group, ["verify", str(place), "--replay", "--recorded", str(moved), "--quiet", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    read = [event["what"] for event in shown if event.get("event") == "shots_read" and event["done"] == event["total"]]
    assert read.count("hashing events1.b8") == 2  # before the directory is noted, and by the verifier


def check_replay_elsewhere(archive: Path, data: Path, elsewhere: Path) -> Path:
    """Replay an archive after its recorded shots have moved: without them, with others, and with them."""
    moved = data.rename(data.with_name("moved"))
    found = replay_archive(archive, elsewhere / "without", on_event=ignore)
    assert "--recorded DIR" in found.verdicts[1]
    place = found.layout.round(1).dir
    with pytest.raises(UsageError) as unknown:
        verify_round.replay(found.layout, Repo.discover(found.layout.repo_root), 1, ignore)
    assert f"autoqec verify {place} --recorded" in str(unknown.value.hint)
    with pytest.raises(UsageError, match="not a directory") as gone:
        replay_archive(archive, elsewhere / "gone", on_event=ignore, recorded=data)
    assert "--recorded" in str(gone.value.hint)
    plans: list[ReplayPlan] = []
    flips = moved / "flips1.01"
    content = flips.read_bytes()
    flips.write_bytes(content[:-2] + (b"1" if content[-2:-1] == b"0" else b"0") + content[-1:])
    with pytest.raises(UsageError, match="is not the file of the manifest"):
        replay_archive(archive, elsewhere / "changed", on_event=ignore, on_plan=plans.append, recorded=moved)
    assert not plans  # reported before anything is checked out or run
    assert not recorded_location(place).exists() and not (elsewhere / "changed").exists()
    flips.write_bytes(content)
    again = replay_archive(archive, elsewhere / "with", on_event=ignore, on_plan=plans.append, recorded=moved)
    assert again.agrees and " again on the same shots" in again.verdicts[1] and plans[0].verifications == 1
    return place


def test_a_restored_open_run_is_resumed_with_its_recorded_shots(workspace: Path, tmp_path: Path) -> None:
    env_file = workspace.parent / "device" / "env.yaml"
    with start_run(env_file, workspace, "smoke", 1) as run:
        run_rounds(run, 1)
        layout = run.layout
    archive, data = tmp_path / "open.tar", env_file.parent / "data"
    package_run(layout, Repo.discover(workspace), archive)
    moved = data.rename(tmp_path / "moved")
    resume = f"autoqec run --resume {layout.run_id} --recorded DIR"
    with pytest.raises(UsageError, match="are not here") as gone:  # the original run, whose shots have moved
        resume_run(layout.run_id, workspace)
    assert gone.value.hint == resume
    restored = replay_archive(archive, tmp_path / "elsewhere", on_event=ignore).layout
    shutil.copy(layout.secret, restored.secret)  # an archive of an open run has no secret
    root, first = restored.repo_root, restored.round(1).dir
    with pytest.raises(UsageError, match="has no recorded shots here") as lacking:
        resume_run(restored.run_id, root)
    assert lacking.value.hint == resume
    events = moved / "events1.b8"
    content = events.read_bytes()
    events.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UsageError, match="is not the file of the manifest"):
        resume_run(restored.run_id, root, recorded=moved)
    assert not recorded_location(first).exists() and not visible_shots(first).exists()
    events.write_bytes(content)
    events_of_resume: list[Event] = []
    with resume_run(restored.run_id, root, recorded=moved, on_event=events_of_resume.append) as resumed:
        read = {event.what for event in events_of_resume if isinstance(event, ShotsRead)}
        assert {"hashing events1.b8", "copying train shots", "copying validation shots"} <= read
        outcome = run_rounds(resumed, 2)
    assert [row.status for row in outcome.rows] == ["ok"] and outcome.rows[0].round == 2
    for part in ("train", "validation"):
        for path in (visible_shots(first) / part).iterdir():
            assert path.read_bytes() == (visible_shots(layout.round(1).dir) / part / path.name).read_bytes()
    shutil.rmtree(visible_shots(first) / "train")  # the location is known, but the copies are gone
    with pytest.raises(UsageError, match="has no recorded shots here"):
        resume_run(restored.run_id, root)


def test_recorded_directory_needs_a_run_to_resume(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    with pytest.raises(UsageError, match="needs --resume") as refused:
        request_run("env.yaml", {"recorded": "data"})
    assert refused.value.location == "--recorded"


def test_shots_that_do_not_fit_start_no_run(workspace: Path) -> None:
    data = workspace.parent / "device" / "data"
    events = data / "events1.b8"
    events.write_bytes(bytes(len(events.read_bytes())))
    with pytest.raises(UsageError, match="is not the file of the manifest"):
        start_run(workspace.parent / "device" / "env.yaml", workspace, "smoke", 1)
    assert not list((workspace / "runs").glob("2*"))
