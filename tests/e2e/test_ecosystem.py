"""Results of a run in other tools: the programs of sinter and stim with the checkpoint of a real round."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sinter
import stim
import torch

from autoqec.errors import UsageError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from autoqec.sinter import decoders
from autoqec.store.files import load_env
from tests.conftest import Workspace, made_workspace
from tests.support.runs import write_lines

PROGRAM = Path(sys.executable).with_name("sinter")
SHOTS = 2000
SECRET = b"a secret that only tests may know"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Return a workspace in which one smoke round ran, and the run id."""
    workspace = made_workspace(tmp_path_factory.mktemp("ecosystem"))
    secret = workspace.root.parent / "secret"
    secret.write_bytes(SECRET)
    result = workspace.autoqec("run", "env.yaml", "--profile", "smoke", "--rounds", "1", "--secret-file", str(secret))
    assert result.code == 0, result.err
    (run,) = (workspace.root / "runs").glob("[0-9]*")
    return workspace, run.name


def run_sinter(workspace: Workspace, *argv: str, **env: str) -> str:
    """Run the program of sinter in the workspace. -P: do not import modules from it."""
    if not PROGRAM.exists():
        pytest.skip("the command `sinter` is missing beside this Python; install: pip install sinter")
    argv = (sys.executable, str(PROGRAM), *argv)
    done = subprocess.run(
        argv, cwd=workspace.root, env={**workspace.env, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sinter_collects_with_a_checkpoint_and_plots(ran: tuple[Workspace, str], tmp_path: Path) -> None:
    workspace, run = ran
    directory = workspace.root / "runs" / run
    env, _ = load_env(directory / "env.yaml")
    circuits = []
    for p in (0.005, 0.01):
        circuits.append(tmp_path / f"d=3,p={p}.stim")
        circuits[-1].write_text(str(Problem.from_env(env, p).circuit), encoding="utf-8")
    rows = [json.loads(line) for line in (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    verified = rows[0]["verify_verdict"] == "VERIFIED"
    name = f"autoqec:{run}:1" if verified else "mine"
    named = {} if verified else {"AUTOQEC_CHECKPOINTS": f"mine={directory}/env.yaml={directory}/round_1/checkpoint.pt"}
    stats = tmp_path / "stats.csv"
    collect = ["collect", "--circuits", *map(str, circuits), "--decoders", name, "mwpm_correlated", "pymatching"]
    collect += ["--custom_decoders_module_function", "autoqec.sinter:decoders", "--metadata_func", "auto", "--quiet"]
    collect += ["--max_shots", str(SHOTS), "--processes", "1", "--save_resume_filepath", str(stats)]
    run_sinter(workspace, *collect, **named)
    found = {(stat.decoder, stat.json_metadata["p"]): stat for stat in sinter.read_stats_from_csv_files(stats)}
    assert len(found) == 6 and {stat.shots for stat in found.values()} == {SHOTS}
    assert 0 < found[name, 0.01].errors <= 1.5 * found["pymatching", 0.01].errors
    picture = tmp_path / "plot.png"
    run_sinter(
        workspace, "plot", "--in", str(stats), "--out", str(picture), "--x_func", "m.p", "--group_func", "decoder"
    )
    assert picture.stat().st_size > 5000


def test_sinter_plots_counts_of_the_verification(ran: tuple[Workspace, str], tmp_path: Path) -> None:
    workspace, run = ran
    csv, picture = tmp_path / "verified.csv", tmp_path / "verified.png"
    result = workspace.autoqec("export", run, "--format", "sinter-csv", "--out", str(csv))
    assert result.code == 0, result.err
    assert any(stat.shots for stat in sinter.read_stats_from_csv_files(csv)), "the round was not nominated"
    run_sinter(workspace, "plot", "--in", str(csv), "--out", str(picture), "--x_func", "m.p", "--group_func", "decoder")
    assert picture.stat().st_size > 5000


def test_verified_round_decodes_a_file_of_shots_and_an_altered_checkpoint_is_refused(
    ran: tuple[Workspace, str], tmp_path: Path
) -> None:
    workspace, run = copied(ran, tmp_path)
    row_of(workspace, run, verify_verdict="VERIFIED")
    prob = Problem.from_env(load_env(workspace.root / "env.yaml")[0])
    shots = sample(prob, SHOTS, 9)
    stim.write_shot_data_file(
        data=shots.detection_events, path=tmp_path / "a.b8", format="b8", num_detectors=prob.n_detectors
    )
    argv = ("decode", f"runs/{run}/round_1", "--in", str(tmp_path / "a.b8"), "--out", str(tmp_path / "b.b8"))
    result = workspace.autoqec(*argv, "--json")
    assert result.code == 0 and result.objects[0]["shots"] == SHOTS, result.err
    predictions = stim.read_shot_data_file(path=tmp_path / "b.b8", format="b8", num_observables=1)
    assert 0 < (predictions != shots.observables).sum() < 0.5 * shots.observables.sum()
    path = workspace.root / "runs" / run / "round_1" / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    weights = next(tensor for tensor in content["state_dict"].values() if tensor.is_floating_point())
    weights.view(-1)[0] += 1e-3
    torch.save(content, path)
    refused = workspace.autoqec(*argv)
    assert refused.code == 2 and "hash differs" in refused.err and "--unverified" in refused.err
    overridden = workspace.autoqec(*argv, "--unverified", "--json")
    assert overridden.code == 0 and overridden.objects[0]["verified"] is False
    assert "not a verified artifact" in overridden.err
    row_of(workspace, run, verify_verdict="FAILED")
    refused = workspace.autoqec(*argv)
    assert refused.code == 2 and "is not VERIFIED" in refused.err


def copied(ran: tuple[Workspace, str], directory: Path) -> tuple[Workspace, str]:
    first, run = ran
    workspace = Workspace(directory / "workspace", first.env)
    shutil.copytree(first.root, workspace.root, ignore=shutil.ignore_patterns("owner.json"))
    return workspace, run


def row_of(workspace: Workspace, run: str, **changed: Any) -> dict[str, Any]:
    """Return the first row of the run's history, after applying `changes` to it in the file."""
    history = workspace.root / "runs" / run / "history.jsonl"
    row = {**json.loads(history.read_text(encoding="utf-8").splitlines()[0]), **changed}
    write_lines(history, [row])
    return row


def own_code(workspace: Workspace, run: str) -> None:
    """Change the round as if its branch had code that raises a recognizable error."""
    net = workspace.root / "autoqec" / "decoders" / "modules" / f"{row_of(workspace, run)['dsl_config']['type']}.py"
    net.write_text(
        net.read_text(encoding="utf-8") + "\nraise RuntimeError('code of the branch ran')\n", encoding="utf-8"
    )
    workspace.git("commit", "-qam", "a branch's own code")
    row_of(workspace, run, commit_sha=workspace.git("rev-parse", "HEAD"))


def test_code_of_a_branch_runs_only_with_explicit_trust(ran: tuple[Workspace, str], tmp_path: Path) -> None:
    workspace, run = copied(ran, tmp_path)
    own_code(workspace, run)
    (tmp_path / "a.b8").write_bytes(b"")
    argv = ("decode", f"runs/{run}/round_1", "--in", str(tmp_path / "a.b8"), "--out", str(tmp_path / "b.b8"))
    refused = workspace.autoqec(*argv)
    assert refused.code == 2 and "--trust-code" in refused.err and not (tmp_path / "b.b8").exists()
    trusted = workspace.autoqec(*argv, "--trust-code", "--unverified")
    assert trusted.code == 2 and "RuntimeError: code of the branch ran" in trusted.err, (
        trusted.err
    )  # the code of the branch was imported


def test_verified_round_is_listed_by_run_and_number(
    ran: tuple[Workspace, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, run = copied(ran, tmp_path)
    monkeypatch.chdir(workspace.root)
    row_of(workspace, run, verify_verdict="SUSPICIOUS")
    without = set(decoders())
    assert "mwpm_correlated" in without and not any(run in name for name in without)
    row_of(workspace, run, verify_verdict="VERIFIED")
    assert set(decoders()) == without | {f"autoqec:{run}:1"}
    prob = Problem.from_env(load_env(workspace.root / "env.yaml")[0])
    compiled = decoders()[f"autoqec:{run}:1"].compile_decoder_for_dem(dem=prob.dem)
    shots = sample(prob, SHOTS, 9)
    predictions = compiled.decode_shots_bit_packed(bit_packed_detection_event_data=shots.detection_events)
    assert 0 < (predictions[:, :1].astype(bool) != shots.observables).sum() < 0.5 * shots.observables.sum()
    path = workspace.root / "runs" / run / "round_1" / "checkpoint.pt"
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    with pytest.raises(UsageError, match="hash differs"):
        decoders()[f"autoqec:{run}:1"].compile_decoder_for_dem(dem=prob.dem)
    path.write_bytes(content)
    own_code(workspace, run)
    with pytest.raises(UsageError, match="custom code.*decode.*--trust-code"):
        decoders()[f"autoqec:{run}:1"].compile_decoder_for_dem(dem=prob.dem)
