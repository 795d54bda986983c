"""`autoqec evaluate` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from click.testing import CliRunner

from cli.commands.evaluate import command

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


def test_it_says_the_score_and_where_the_files_are(tmp_path):
    result = run(config(tmp_path))
    assert result.exception is None and result.return_value == 0
    first, second = result.stdout.splitlines()
    assert first == "mean score 0.0000 over 2 steps of 2 episodes"
    assert (Path(second) / "metrics.json").is_file()


def test_json_is_one_object_a_line(tmp_path):
    result = run(config(tmp_path, verbose=True), "--json")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["train_steps"] == 2 and "episodes" not in json.loads(line)


def test_what_failed_is_told_by_the_exit_code(tmp_path):
    result = run(config(tmp_path, [*ROWS, {"question": "no answer"}]))
    assert result.return_value == 1
    assert "row 3: field 'answer' is missing" in result.stderr


def test_resume(tmp_path):
    path = config(tmp_path, checkpoint_dir="checkpoints", checkpoint_every_episodes=1)
    where = Path(run(path, "--json").stdout and json.loads(run(path, "--json").stdout)["results_dir"])
    result = run(path, "--json", "--resume", str(where / "checkpoints/ep_000001"))
    assert json.loads(result.stdout)["train_steps"] == 2
