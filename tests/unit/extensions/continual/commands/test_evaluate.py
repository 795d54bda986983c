"""`autoqec evaluate` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.errors import UsageError
from autoqec.extensions.continual.commands.evaluate import command
from tests.support.shown import check_error

ROWS = [{"question": "2+2?", "answer": "2+2?"}, {"question": "3+3?", "answer": "6"}]


def config(folder: Path, rows=ROWS, **runtime) -> str:
    path = folder / "config.yaml"
    content = {
        "runtime": {"verbose": False, **runtime},
        "dataset": {"items": rows, "instruction_template": "{question}"},
        "lm": {"model": "scripted:echo"},
        "agent": {"type": "history_agent", "history_k": 0},
        "output": {"results_dir": "results"},
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def run(*argv):
    return CliRunner().invoke(command, argv, standalone_mode=False)


def test_score_and_results_directory_are_printed(tmp_path):
    result = run(config(tmp_path))
    assert result.exception is None and result.return_value == 0
    first, second = result.stdout.splitlines()
    assert first == "mean score 0.0000 over 2 steps of 2 episodes"
    assert (Path(second) / "metrics.json").is_file()


def test_json_output_is_one_object(tmp_path):
    result = run(config(tmp_path, verbose=True), "--json")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["train_steps"] == 2 and "episodes" not in json.loads(line)


def test_invalid_row_gives_exit_code_1(tmp_path):
    result = run(config(tmp_path, [*ROWS, {"question": "no answer"}]))
    assert result.return_value == 1
    assert "row 3: field 'answer' is missing" in result.stderr


def test_resume_from_checkpoint(tmp_path):
    path = config(tmp_path, checkpoint_dir="checkpoints", checkpoint_every_episodes=1)
    where = Path(run(path, "--json").stdout and json.loads(run(path, "--json").stdout)["results_dir"])
    result = run(path, "--json", "--resume", str(where / "checkpoints/ep_000001"))
    assert json.loads(result.stdout)["train_steps"] == 2


def test_quiet_prints_result_only(tmp_path):
    result = run(config(tmp_path, verbose=True), "-q")
    assert len(result.stdout.splitlines()) == 2 and not result.stderr


WRONG = [
    ({"dataset": {"items": ROWS, "task_type": "custom"}}, "env_class"),
    ({"dataset": {"items": [{"prompt": "2+2?"}]}}, "question"),
    ({"agent": {"type": "oracle_agent"}}, "memoryless_agent"),
    ({"memory": {"_type": "elephant"}, "agent": {"type": "memory_agent"}}, "history_list"),
    ({"lm": {"model": "gemma-unheard-of"}}, "no backend"),
    ({"runtime": {"verbose": False, "resume_from": "nowhere/latest"}}, "nowhere"),
]


@pytest.mark.parametrize("change, words", WRONG, ids=[words for _, words in WRONG])
def test_invalid_config_writes_nothing(tmp_path, capsys, change, words):
    path = Path(config(tmp_path))
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    assert run_cli(group, ["evaluate", str(path)]) == 2
    check_error(capsys.readouterr().err, words)
    assert not (tmp_path / "results").exists()


def test_damaged_checkpoint_is_rejected(tmp_path, capsys):
    path = config(tmp_path, checkpoint_dir="checkpoints", checkpoint_every_episodes=1)
    assert run_cli(group, ["evaluate", path]) == 0
    (done,) = (tmp_path / "results").iterdir()
    torn = done / "checkpoints/ep_000002/memory_2.jsonl"
    torn.write_bytes(torn.read_bytes()[:-9])
    assert run_cli(group, ["evaluate", path, "--resume", str(torn.parent)]) == 2
    assert "memory_2.jsonl" in capsys.readouterr().err and list((tmp_path / "results").iterdir()) == [done]


def test_missing_model_answer_fails_one_episode_only(tmp_path, capsys):
    (tmp_path / "says.jsonl").write_text('{"when": "3", "say": "6"}\n')
    path = Path(config(tmp_path))
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"lm": {"model": "scripted:says.jsonl"}}))
    assert run_cli(group, ["evaluate", str(path)]) == 1
    said = capsys.readouterr()
    assert "mean score 1.0000 over 1 steps of 1 episodes" in said.out and "failed: episode 1" in said.err


def test_unknown_config_error_lists_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("nope")
    assert isinstance(result.exception, UsageError) and "toy_inmemory" in str(result.exception)
