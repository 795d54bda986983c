"""`review-log` and `diagnose` from the command line, on a run whose files were written by the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec import locate
from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.round import RoundMetrics
from autoqec.store import atomic, files
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace
from tests.support import rounds
from tests.support.messages_server import MessagesServer, say_json

WIDE = PredecoderDSL.model_validate({"type": "mlp", "mlp": {"hidden": 4096}}).config()


@pytest.fixture
def run(workspace: Workspace) -> RunLayout:
    """A run of two rounds whose config exceeds a limit of the env."""
    layout = RunLayout(workspace.root, rounds.RUN_ID)
    atomic.make_dir(layout.root)
    env = files.load_env(locate.BUILTIN / "smoke.yaml")[1]
    atomic.write_text(layout.env, env)
    History(layout).write_info(rounds.info(env_yaml_sha256=sha256_bytes(env.encode())))
    reason = "n_params = 9999999 exceeds the env's limit of 200000"
    for number in (1, 2):
        place = layout.round(number)
        atomic.make_dir(place.dir)
        metrics = RoundMetrics(status="compile_error", status_reason=reason, failure_cause="cost limit")
        atomic.write_json(place.metrics, metrics.dump())
        atomic.write_text(place.config, files.dump_config(WIDE))
        row = rounds.row(number, **metrics.dump() | {"verify_verdict": None, "dsl_config": WIDE,
                                                     "dsl_config_sha256": parse_dsl(WIDE).sha256()})  # fmt: skip
        History(layout).append_row(row)
    return layout


def test_review_log_prints_text_and_json(workspace: Workspace, run: RunLayout) -> None:
    shown = workspace.autoqec("review-log", rounds.RUN_ID, "--json")
    assert shown.code == 0, shown.err
    assert {"repeat", "failure", "stale-log", "budget"} == {finding["kind"] for finding in shown.objects}
    plain = workspace.autoqec("review-log", str(run.root))
    assert plain.code == 0 and "rounds 1, 2" in plain.out and "Try:" in plain.out and not plain.err


@pytest.mark.parametrize("name", ["review-log", "diagnose"])
def test_empty_model_is_refused(
    name: str, workspace: Workspace, run: RunLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace.root)
    assert run_cli(group, [name, rounds.RUN_ID, "--model", ""]) == 2
    assert "error: --model: is empty\nhint: name a model" in capsys.readouterr().err


@pytest.mark.long
def test_patched_config_of_diagnose_trains(workspace: Workspace, run: RunLayout, tmp_path: Path) -> None:
    whole = workspace.autoqec("diagnose", rounds.RUN_ID, "--json")
    assert whole.code == 0 and [finding["round"] for finding in whole.objects] == [1, 2]
    target = tmp_path / "patched.yaml"
    one = workspace.autoqec("diagnose", str(run.round(2).dir), "--write", str(target))
    assert one.code == 0 and "cost limit" in one.out and "mlp.hidden: 4096 ->" in one.out, one.out + one.err
    again = workspace.autoqec("run-round", "env.yaml", str(target), "again", "--profile", "smoke", "--json")
    assert again.code == 0 and json.loads(again.out.splitlines()[-1])["status"] == "ok", again.err


def test_diagnose_write_needs_exactly_one_patch(workspace: Workspace, run: RunLayout, tmp_path: Path) -> None:
    shown = workspace.autoqec("diagnose", rounds.RUN_ID, "--write", str(tmp_path / "one.yaml"))
    assert shown.code == 2 and "2 rounds" in shown.err and not (tmp_path / "one.yaml").exists()


@pytest.mark.parametrize("command", ["review-log", "diagnose"])
def test_unknown_run_is_rejected(workspace: Workspace, command: str) -> None:
    shown = workspace.autoqec(command, "20200101-000000")
    assert shown.code == 2 and "run not found" in shown.err and "hint:" in shown.err


POINT = {
    "what": "one config was tried twice and broke the bounds twice",
    "rounds": [1, 2],
    "change": "halve mlp.hidden",
}


def model(folder: Path, points: list[dict], capsys: pytest.CaptureFixture[str]) -> str:
    path = folder / "says.jsonl"
    path.write_text(json.dumps({"when": "What matters", "say": {"points": points}}) + "\n", encoding="utf-8")
    capsys.readouterr()
    return f"scripted:{path}"


@pytest.mark.parametrize("name", ["review-log", "diagnose"])
def test_model_summary_follows_findings(
    workspace: Workspace, run: RunLayout, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(workspace.root)
    assert run_cli(group, [name, rounds.RUN_ID, "--json"]) == 0
    before = capsys.readouterr().out
    assert run_cli(group, [name, rounds.RUN_ID, "--json", "--model", model(tmp_path, [POINT], capsys)]) == 0
    after = capsys.readouterr().out
    assert after.startswith(before) and len(after.splitlines()) == len(before.splitlines()) + 1
    words = json.loads(after.splitlines()[-1])
    assert words["event"] == "words" and words["points"] == [POINT] and words["cost_usd"] == 0.0
    assert run_cli(group, [name, rounds.RUN_ID, "--model", model(tmp_path, [POINT], capsys)]) == 0
    assert "(not verified, 0.0000 USD)" in capsys.readouterr().out


def test_summary_by_self_hosted_model(
    workspace: Workspace, run: RunLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace.root)
    with MessagesServer(key="none", models=("qwen3",)) as server:
        server.answer = lambda body: say_json({"points": [POINT]})
        monkeypatch.setenv("AUTOQEC_READER_BASE_URL", server.url)
        assert run_cli(group, ["review-log", rounds.RUN_ID, "--model", "qwen3"]) == 0
    assert "Summary by qwen3 (not verified, cost unknown)" in capsys.readouterr().out


def test_summary_naming_unknown_rounds_is_discarded(
    workspace: Workspace,
    run: RunLayout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workspace.root)
    invented = model(tmp_path, [POINT | {"rounds": [1, 77]}], capsys)
    assert run_cli(group, ["review-log", rounds.RUN_ID, "--model", invented]) == 0
    shown = capsys.readouterr()
    assert "no usable answer" in shown.err and "rounds 1, 2" in shown.out


def test_model_without_key_is_rejected_before_output(
    workspace: Workspace, run: RunLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace.root)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert run_cli(group, ["review-log", rounds.RUN_ID, "--model", "claude-opus-5-5"]) == 2
    shown = capsys.readouterr()
    assert "no key" in shown.err and not shown.out
