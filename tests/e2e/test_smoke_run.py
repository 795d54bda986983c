"""A complete run from the command line: no git identity, no key, no network; two rounds of `smoke`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from tests.conftest import CommandResult, Workspace, made_workspace

SECRET = b"a secret that only tests may know"
# Fields that a repetition may change: times, memory, and the path of the round.
LOOSE = {"train_wallclock_s", "eval_wallclock_s", "vram_peak_gb", "rss_peak_gb", "checkpoint_path", "training_log_path"}
LOOSE |= {"measurement_started_at", "measurement_finished_at"}


def started(workspace: Workspace, *more: str) -> CommandResult:
    secret = workspace.root.parent / "secret"
    secret.write_bytes(SECRET)
    options = ("--profile", "smoke", "--rounds", "2", "--seed", "1", "--secret-file", str(secret))
    return workspace.autoqec("run", "env.yaml", *options, *more, fresh=True)  # as a user starts it


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, CommandResult, Path]:
    """Return one finished run, shared by the tests below, which do not change it."""
    workspace = made_workspace(tmp_path_factory.mktemp("first"))
    before = workspace.git("rev-parse", "HEAD")
    result = started(workspace)
    assert result.code == 0, result.err + result.out
    assert workspace.git("rev-parse", "HEAD") == before and workspace.git("symbolic-ref", "HEAD") == "refs/heads/main"
    (run,) = (workspace.root / "runs").glob("[0-9]*")
    return workspace, result, run


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def branches(workspace: Workspace) -> list[str]:
    return workspace.git("for-each-ref", "--format=%(refname:short)", "refs/heads/exp/").splitlines()


def test_repository_is_unchanged_except_for_branches(ran: tuple[Workspace, CommandResult, Path]) -> None:
    workspace, _, run = ran
    assert len(branches(workspace)) == 2 and all(name.startswith(f"exp/{run.name}/") for name in branches(workspace))
    assert len(workspace.git("worktree", "list").splitlines()) == 1
    assert workspace.git("status", "--porcelain") == ""
    assert workspace.git("fsck", "--no-dangling") == ""
    left = [name for name in workspace.files() if name.endswith((".tmp", ".lock"))]
    assert left == [f"runs/{run.name}/owner.lock"]


def test_rows_agree_with_round_files(ran: tuple[Workspace, CommandResult, Path]) -> None:
    _, _, run = ran
    assert re.fullmatch(r"\d{8}-\d{6}", run.name)
    assert [row["round"] for row in rows(run)] == [1, 2]
    for value in rows(run):
        row = HistoryRow.read(value)
        metrics = json.loads((run / f"round_{row.round}" / "metrics.json").read_bytes())
        assert set(metrics) == set(RoundMetrics.model_fields) and row.status == "ok"
        paths = {"checkpoint_path", "training_log_path"}
        assert {key: value[key] for key in metrics.keys() - paths} == {
            key: metrics[key] for key in metrics.keys() - paths
        }
        for name in paths:
            assert Path(metrics[name]).is_absolute() and not Path(value[name]).is_absolute()
            assert (run / value[name]).samefile(metrics[name])


def test_log_has_events_with_times(ran: tuple[Workspace, CommandResult, Path]) -> None:
    _, _, run = ran
    text = (run / "logs" / "autoqec.log").read_text(encoding="utf-8")
    for number in (1, 2):
        for kind in ("round_begun", "planned", "measured", "nominated", "round_recorded"):
            assert len(re.findall(rf"^\S+Z INFO round={number} {kind} ", text, re.MULTILINE)) == 1, (number, kind)
    assert "run_started" in text and "run_stopped" in text and "ERROR" not in text


def test_pointers_are_on_their_branches(ran: tuple[Workspace, CommandResult, Path]) -> None:
    workspace, _, run = ran
    for row in rows(run):
        number, branch = row["round"], row["branch"]
        name = f"round_{number}/round_{number}_pointer.json"
        text = workspace.git("show", f"{branch}:{name}")
        pointer = Pointer.model_validate(json.loads(text))
        assert (pointer.run_id, pointer.round_attempt_id) == (run.name, row["round_attempt_id"])
        assert workspace.git("rev-parse", f"{branch}^") == pointer.commit_sha == row["commit_sha"]
        assert (run / name).read_text(encoding="utf-8").strip() == text.strip()
        touched = workspace.git("diff", "--name-only", f"main...{branch}").splitlines()
        pointers = tuple(f"round_{ancestor}/round_{ancestor}_pointer.json" for ancestor in range(1, number + 1))
        assert all(path.startswith(("autoqec/decoders/modules/", *pointers)) for path in touched), touched


def test_nominated_rounds_have_a_verification_report(ran: tuple[Workspace, CommandResult, Path]) -> None:
    _, _, run = ran
    for row in rows(run):
        path = run / f"round_{row['round']}" / "verification_report.json"
        assert path.is_file() == (row["verdict"] == "candidate")
        if path.is_file():
            report = VerifyReport.model_validate(json.loads(path.read_bytes()))
            assert report.verdict == row["verify_verdict"]
            assert path.with_suffix(".md").read_text(encoding="utf-8").strip()
            assert SECRET.hex() not in path.read_text(encoding="utf-8")


def test_output_of_the_command(ran: tuple[Workspace, CommandResult, Path]) -> None:
    workspace, result, run = ran
    for part in ("hypothesis:", "measured:", "Rounds", "log.md", "2 rounds"):
        assert part in result.out, result.out
    verified = [row for row in rows(run) if row["verify_verdict"] == "VERIFIED"]
    if verified:
        for part in (
            "Verified front",
            "against mwpm:",
            "against mwpm_correlated:",
            "git checkout exp/",
            "verification_report.md",
        ):
            assert part in result.out, result.out
    shown = workspace.autoqec("show", run.name)
    assert shown.code == 0 and shown.out.strip() in result.out
    listed = workspace.autoqec("show", "--json")
    assert [value["run_id"] for value in listed.objects] == [run.name]


def test_views_are_rebuilt_byte_for_byte(ran: tuple[Workspace, CommandResult, Path]) -> None:
    workspace, _, run = ran
    names = ("pareto.json", "pareto_preview.json", "fork_graph.json", "log.md")
    before = {name: (run / name).read_bytes() for name in names}
    history = (run / "history.jsonl").read_bytes()
    for name in names:
        (run / name).unlink()
    dry = workspace.autoqec("reconcile", run.name, "--dry-run")
    assert dry.code == 0 and not (run / "log.md").exists()
    assert workspace.autoqec("reconcile", run.name).code == 0
    assert {name: (run / name).read_bytes() for name in names} == before
    assert (run / "history.jsonl").read_bytes() == history


def test_checked_out_round_is_reproducible(ran: tuple[Workspace, CommandResult, Path], tmp_path: Path) -> None:
    workspace, _, run = ran
    row = rows(run)[-1]
    copied_workspace = Workspace(tmp_path / "clone", workspace.env)
    workspace.git("clone", "-q", "-b", row["branch"], str(workspace.root), str(copied_workspace.root))
    config = copied_workspace.root / "autoqec/decoders/modules/predecoder.yaml"
    parent = () if row["fork_from"] == "baseline" else ("--run-id", run.name, "--fork-from", row["fork_from"])
    shutil.copytree(
        workspace.root / "runs", copied_workspace.root / "runs", ignore=shutil.ignore_patterns("owner.json")
    )
    options = ("--profile", "smoke", "--seed", str(row["train_seed"]), "--round-idx", str(row["round"]))
    again = copied_workspace.autoqec("run-round", "env.yaml", str(config), "again", *options, *parent)
    assert again.code == 0, again.err
    old = json.loads((run / f"round_{row['round']}" / "metrics.json").read_bytes())
    new = json.loads((copied_workspace.root / "again" / "metrics.json").read_bytes())
    assert {key: new[key] for key in new.keys() - LOOSE} == {key: old[key] for key in old.keys() - LOOSE}


def test_round_is_verified_on_request_and_replayed(ran: tuple[Workspace, CommandResult, Path], tmp_path: Path) -> None:
    """On a copy: a round that was not nominated is verified on request; the next request replays the report."""
    workspace, _, run = ran
    copied_workspace = Workspace(tmp_path / "copy", workspace.env)
    shutil.copytree(workspace.root, copied_workspace.root, symlinks=True, ignore=shutil.ignore_patterns("owner.json"))
    copied_run = copied_workspace.root / "runs" / run.name
    before = rows(copied_run)
    first = copied_workspace.autoqec("verify", str(copied_run / "round_1"), "--json")
    report = (copied_run / "round_1" / "verification_report.json").read_bytes()
    verdict = VerifyReport.model_validate(json.loads(report)).verdict
    assert first.objects[-1]["verdict"] == verdict and first.code == (0 if verdict == "VERIFIED" else 1), first.err
    assert SECRET.hex().encode() not in report
    again = copied_workspace.autoqec("verify", str(copied_run / "round_1"), "--json")
    assert again.objects[-1]["verdict"] == verdict, again.err
    assert (copied_run / "round_1" / "verification_report.json").read_bytes() == report
    after = rows(copied_run)
    assert after[: len(before)] == before
    if before[0]["verify_verdict"] is None:
        (row,) = after[len(before) :]
        assert (row["verify_verdict"], row["refers_to_attempt"]) == (verdict, before[0]["round_attempt_id"])
    assert copied_workspace.autoqec("reconcile", run.name, "--json").objects == []
    closed = copied_workspace.autoqec("close", run.name, "--json")
    assert closed.objects == [{"run_id": run.name, "secret": SECRET.hex()}], closed.err
    assert not (copied_run / "secret").exists()
    replayed = copied_workspace.autoqec("verify", str(copied_run / "round_1"), "--json")
    assert replayed.objects[-1]["verdict"] == verdict, replayed.err
    assert (copied_run / "round_1" / "verification_report.json").read_bytes() == report
    assert copied_workspace.autoqec("run", "--resume", run.name, "--rounds", "9").code == 2
    assert copied_workspace.autoqec("close", run.name).code == 0
    assert rows(copied_run) == after


def test_same_seed_and_secret_give_the_same_run(ran: tuple[Workspace, CommandResult, Path], tmp_path: Path) -> None:
    _, _, run = ran
    other = made_workspace(tmp_path)
    events = started(other, "--json")
    assert events.code == 0
    page = (Path(__file__).parents[2] / "docs/contracts/command-line.md").read_text(encoding="utf-8")
    kinds = {value["event"] for value in events.objects}
    assert {"run_opened", "planned", "training", "measured", "round_recorded", "run_finished"} <= kinds
    assert all(f"| `{kind}` |" in page for kind in kinds), kinds
    (repeated_run,) = (other.root / "runs").glob("[0-9]*")
    keys = (
        "hypothesis", "dsl_config", "final_loss", "delta_ler", "train_steps", "verdict", "verify_verdict",
        "delta_vs_baseline_holdout", "holdout_shots",
    )  # fmt: skip
    assert [[row[key] for key in keys] for row in rows(repeated_run)] == [
        [row[key] for key in keys] for row in rows(run)
    ]


def test_resumed_run_continues_where_it_stopped(ran: tuple[Workspace, CommandResult, Path], tmp_path: Path) -> None:
    workspace, _, run = ran
    copied_workspace = Workspace(tmp_path / "copy", workspace.env)
    shutil.copytree(workspace.root, copied_workspace.root, symlinks=True, ignore=shutil.ignore_patterns("owner.json"))
    result = copied_workspace.autoqec("run", "--resume", run.name, "--rounds", "3")
    assert result.code == 0, result.err
    copied = rows(copied_workspace.root / "runs" / run.name)
    assert [row["round"] for row in copied] == [1, 2, 3]
    assert copied[:2] == rows(run)
