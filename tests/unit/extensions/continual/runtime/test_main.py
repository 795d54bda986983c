"""A complete evaluation from YAML: configs, results directories, logs, seeds."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.environments.base import EnvDatasetConfig
from autoqec.extensions.continual.environments.datasets import QAEnvDatasetConfig
from autoqec.extensions.continual.environments.qa import QAEnv
from autoqec.extensions.continual.memory.modules import HistoryListConfig, load_memory
from autoqec.extensions.continual.runtime import checkpoints, logs
from autoqec.extensions.continual.runtime import config as config_module
from autoqec.extensions.continual.runtime.config import RunConfig, load_config, resolve_paths
from autoqec.extensions.continual.runtime.main import evaluate, evaluate_config, new_results_dir
from autoqec.extensions.language_models.clients.config import LMConfig
from autoqec.extensions.language_models.clients.errors import LlmAuthError
from tests.support.messages_server import MessagesServer

ROOT = Path(__file__).parents[5]
QUESTIONS = [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(1, 5)]


def write(folder: Path, **changes) -> Path:
    """Write a config with its dataset and script; `changes` replace top-level blocks."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    rules = [{"when": r"Q: 1\+1\?\Z", "say": "2"}, {"when": "look back|Step 1", "say": "advice"}, {"say": "4"}]
    (folder / "model.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    config = {
        "runtime": {"verbose": False},
        "dataset": {"dataset_path": "rows.jsonl"},
        "lm": {"model": "scripted:model.jsonl"},
        "memory": {"_type": "history_list", "max_length": 7},
        "agent": {"type": "memory_agent"},
        "output": {"results_dir": "results"},
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


EVERYTHING = {
    "runtime": {
        "verbose": False,
        "scores_path": "scores.jsonl",
        "log_calls": True,
        "validation_freq": 2,
        "run_validation_at_start": True,
        "checkpoint_dir": "checkpoints",
        "checkpoint_every_episodes": 2,
    },
    "validation_dataset": {"items": QUESTIONS[:1]},
    "agent": {"type": "reflexion_agent"},
    "output": {"results_dir": "results", "save_memory_path": "memories"},
}


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())


def test_files_of_a_minimal_run(tmp_path):
    result = evaluate(write(tmp_path))
    assert re.fullmatch(r"\d{8}_\d{6}(_\d+)?", result.results_dir.name)
    assert result.results_dir.parent == tmp_path / "results"
    assert tree(result.results_dir) == ["config.yaml", "metrics.json", "run.log"]
    assert result.metrics["mean_score"] == 0.5 and result.exit_code == 0


def test_files_of_a_run_with_everything_enabled(tmp_path):
    result = evaluate(write(tmp_path, **EVERYTHING))
    expected = ["config.yaml", "metrics.json", "run.log", "checkpoints/latest.json"]
    for episode in (2, 4):
        checkpoint = f"checkpoints/ep_{episode:06d}"
        expected += [f"{checkpoint}/{name}" for name in ("runtime.json", "agent.json", f"memory_{episode}.jsonl")]
    expected += [f"memories/memory_{episode}.jsonl" for episode in (2, 4)]
    expected += ["scores/train/scores.jsonl"]
    expected += [f"scores/val/{seen}_seen_episodes_scores.jsonl" for seen in (0, 2, 4)]
    expected += [f"llm_calls/validation/val_{seen}/actions/000001_001_001.json" for seen in (0, 2, 4)]
    for episode in range(1, 5):
        expected += [f"llm_calls/train/actions/{episode:06d}_001_001.json"]
        expected += [f"llm_calls/train/reflections/{episode:06d}_002_002.json"]
    assert tree(result.results_dir) == sorted(expected)
    assert os.readlink(result.results_dir / "checkpoints/latest") == "ep_000004"


def test_two_runs_in_one_second_share_nothing(tmp_path):
    found = [new_results_dir(tmp_path / "deep/er") for _ in range(3)]
    assert len(set(found)) == 3


def test_effective_config_is_written_first_and_loads_unchanged(tmp_path):
    """A run killed in its first episode has written its config."""
    slow = "tests.unit.extensions.continual.runtime.test_main.Slow"
    path = write(tmp_path, dataset={"dataset_path": "rows.jsonl", "env_class": slow})
    code = "import sys; from autoqec.extensions.continual.runtime.main import evaluate; evaluate(sys.argv[1])"
    env = {**os.environ, "SLOW_RESULTS": str(tmp_path / "results")}
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, env=env)
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("results/*/started")) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (results,) = (tmp_path / "results").iterdir()
    assert sorted(item.name for item in results.iterdir()) == ["config.yaml", "run.log", "started"]
    assert load_config(results / "config.yaml") == load_config(path)


class Slow(QAEnv):
    """Writes a marker file, then sleeps."""

    def reset(self):
        (results,) = Path(os.environ["SLOW_RESULTS"]).iterdir()
        (results / "started").touch()
        time.sleep(60)
        return super().reset()


def test_effective_config_contains_the_defaults(tmp_path):
    result = evaluate(write(tmp_path))
    written = yaml.safe_load((result.results_dir / "config.yaml").read_text())
    assert written["runtime"]["num_trials"] == 1
    assert written["agent"]["memory_config"] == {"_type": "history_list", "max_length": 7}
    assert written["dataset"]["dataset_path"] == str(tmp_path / "rows.jsonl")


def test_one_file_per_call_only_if_requested(tmp_path):
    result = evaluate(write(tmp_path, **EVERYTHING))
    call = json.loads((result.results_dir / "llm_calls/train/actions/000001_001_001.json").read_text())
    assert call["user_prompt"] == "Q: 1+1?" and call["output"] == "2" and call["system_prompt"]
    assert call["context"] == {
        "mode": "train",
        "episode_index": 1,
        "step_index": 1,
        "kind": "actions",
        "seen_episodes": 1,
        "env_id": "qa_1",
        "lm_model": f"scripted:{tmp_path}/model.jsonl",
        "agent_type": "ReflexionAgent",
    }
    val = json.loads((result.results_dir / "llm_calls/validation/val_2/actions/000001_001_001.json").read_text())
    assert val["context"]["mode"] == "val"


def test_metrics_json_is_the_result(tmp_path):
    result = evaluate(write(tmp_path))
    assert json.loads((result.results_dir / "metrics.json").read_text()) == result.metrics


def test_two_runs_in_one_process_have_separate_logs(tmp_path):
    def run(name):
        row = {"question": "q", "answer": "a", "n": name}
        return evaluate(write(tmp_path / name, dataset={"items": [row], "id_field": "n"}))

    first_run, second_run = run("first"), run("second")
    first, second = ((run.results_dir / "run.log").read_text() for run in (first_run, second_run))
    assert "(first)" in first and "(second)" not in first
    assert "(second)" in second and "(first)" not in second


def test_entry_point_resumes_a_run(tmp_path):
    path = write(tmp_path, **EVERYTHING)
    uninterrupted = evaluate(path)
    resumed = evaluate(path, resume_from=str(uninterrupted.results_dir / "checkpoints/ep_000002"))
    assert resumed.results_dir != uninterrupted.results_dir
    assert resumed.metrics == uninterrupted.metrics
    assert load_config(resumed.results_dir / "config.yaml").runtime.start_episode_index == 2
    with pytest.raises(ContractError):
        (uninterrupted.results_dir / "checkpoints/ep_000002/agent.json").unlink()
        evaluate(path, resume_from=str(uninterrupted.results_dir / "checkpoints/ep_000002"))
    assert len(list((tmp_path / "results").iterdir())) == 2, "a refused resume leaves nothing behind"


def test_top_level_blocks_configure_the_agent():
    data = {"dataset": {"items": QUESTIONS}, "lm": {"model": "scripted:echo"}, "agent": {"type": "history_agent"}}
    config = RunConfig.model_validate({**data, "memory": {"_type": "history_list", "max_length": 3}})
    assert config.agent.memory_config == HistoryListConfig(max_length=3)
    assert config.lm_config == LMConfig(model="scripted:echo")
    own = {"type": "history_agent", "memory_config": {"type": "hybrid"}, "lm_config": {"model": "scripted:other"}}
    config = RunConfig.model_validate({**data, "memory": {"_type": "history_list"}, "agent": own})
    assert config.agent.memory_config.type == "hybrid"
    assert config.lm_config.model == "scripted:other"
    memoryless = RunConfig.model_validate(
        {**data, "memory": {"_type": "history_list"}, "agent": {"type": "memoryless_agent"}}
    )
    assert memoryless.agent.type == "memoryless_agent"
    renamed = {("train_dataset" if key == "dataset" else key): value for key, value in data.items()}
    assert isinstance(RunConfig.model_validate(renamed).dataset, QAEnvDatasetConfig)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"runtime": {"max_env": 3}}, "runtime.max_env"),
        ({"output": {"log_level": "LOUD"}}, "output.log_level"),
        ({"extra": 1}, "extra"),
        ({"agent": {"type": "history_agent", "k": 3}}, "field `k`"),
        ({"agent": {"type": "nope"}}, "history_agent, reflexion_agent"),
        ({"memory": {"_type": "nope"}}, "history_list, cheatsheet"),
        ({"dataset": {"items": QUESTIONS, "question_feild": "q"}}, "question_feild"),
        ({"dataset": {"kind": "nope"}}, "unknown dataset kind"),
        ({"dataset": {"items": QUESTIONS, "task_type": "custom"}}, "needs `env_class`"),
        ({"lm": {"model": "mistral-large"}}, "no backend for the model"),
        (
            {"runtime": {"checkpoint_dir": "../elsewhere", "checkpoint_every_episodes": 1}},
            "inside the results directory",
        ),
        ({"runtime": {"checkpoint_dir": "c"}}, "checkpoint_every_episodes"),
        ({"runtime": {"checkpoint_dir": "c", "checkpoint_strategy": "top_k_val"}}, "validation_freq"),
        ({"seed": -1}, "seed"),
        ({"dataset": {"dataset_path": "none.jsonl"}}, "none.jsonl"),
        ({"lm": {"model": "scripted:none.jsonl"}}, "none.jsonl"),
    ],
)
def test_wrong_key_is_named_and_nothing_is_written(tmp_path, changes, path):
    with pytest.raises(UsageError, match=re.escape(path)):
        evaluate(write(tmp_path, **changes))
    assert not (tmp_path / "results").exists()


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    path = write(tmp_path / "configs", output={"results_dir": "../out"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = evaluate(os.path.relpath(path))
    assert result.results_dir.resolve().parent == tmp_path / "out"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_seed_seeds_python_numpy_and_torch(tmp_path):
    def draws():
        return random.random(), float(np.random.random()), float(torch.rand(1))

    evaluate(write(tmp_path, seed=5))
    first = draws()
    checkpoints.seed_all(5)
    assert draws() == first
    evaluate(write(tmp_path, seed=6))
    assert all(new != old for new, old in zip(draws(), first, strict=True))


def test_memory_is_dumped_to_the_requested_file(tmp_path):
    output = {"results_dir": "results", "save_memory_path": "final/memory.jsonl"}
    result = evaluate(write(tmp_path, output=output))
    memory = load_memory(result.results_dir / "final/memory.jsonl")
    assert [entry.obs for entry in memory.recall()] == [row["question"] for row in QUESTIONS]
    assert memory.config == HistoryListConfig(max_length=7)


def test_failed_rows_determine_the_exit_code(tmp_path):
    result = evaluate(write(tmp_path, dataset={"items": [*QUESTIONS, {"question": "no answer"}]}))
    assert result.metrics["errors"] == ["dataset: row 5: field 'answer' is missing"]
    assert result.metrics["train_episodes"] == 4 and result.exit_code == 1
    assert "row 5" in (result.results_dir / "run.log").read_text()


EXAMPLES = list(config_module.examples().values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_validates_offline(path):
    config = load_config(path)
    assert isinstance(config.dataset, EnvDatasetConfig)
    assert Path(config.output.results_dir).parent == Path.cwd() / "outputs"


def test_examples_are_listed_and_the_toy_example_runs(tmp_path, monkeypatch):
    expected = {"aime_numeric", "gpqa_mcq", "mmlu_pro_mcq", "toy_inmemory", "design_tabular"}
    assert {path.stem for path in EXAMPLES} >= expected
    monkeypatch.chdir(tmp_path)
    result = evaluate("toy_inmemory", console=io.StringIO())
    assert result.results_dir.is_relative_to(tmp_path / "outputs")
    assert result.exit_code == 0 and result.metrics["mean_score"] > 0.5


def test_memory_finds_better_designs_in_the_table(tmp_path):
    data = yaml.safe_load(config_module.examples()["design_tabular"].read_text())
    data["runtime"] |= {"verbose": False}
    data["output"]["results_dir"] = str(tmp_path / "out")
    config = resolve_paths(RunConfig.model_validate(data), config_module.EXAMPLES)
    first, second = evaluate_config(config).metrics["episodes"]
    scores = [[step["feedback"]["score"] for step in episode] for episode in (first, second)]
    assert max(scores[0]) < min(scores[1])
    assert f"{max(scores[1]):.4f}" == second[0]["feedback"]["target"], "the best design of the table was found"


def test_children_write_through_the_parents_handlers(tmp_path):
    console = io.StringIO()
    logger = logs.setup_logger("run", "WARN", tmp_path / "run.log", {"run": 7}, console=console)
    part = logs.child_logger(logger, "agent", {"env": "e1"})
    part.info("too quiet")
    part.warning("heard")
    logs.child_logger(part, "lm").error("from below")
    logger.error("the run's own")
    logs.close(logger)
    part.error("too late")
    text = (tmp_path / "run.log").read_text()
    assert text == console.getvalue()
    assert [line.partition("Z ")[2] for line in text.splitlines()] == [
        "WARNING run.agent [env=e1]: heard",
        "ERROR run.agent.lm: from below",
        "ERROR run [run=7]: the run's own",
    ]


def test_json_log_holds_one_object_per_line_with_fields_and_traceback(tmp_path):
    console = io.StringIO()
    path = tmp_path / "run.log"
    logger = logs.setup_logger("run", "INFO", path, {"run": 7}, console=console, log_format="json")
    try:
        raise ValueError("größer")
    except ValueError:
        logger.exception("it failed: %s", "größer")
    logs.child_logger(logger, "agent", {"env": "e1"}).info("two\nlines")
    logs.close(logger)
    failed, logged = (json.loads(line) for line in path.read_text().splitlines())
    assert {name: failed[name] for name in ("level", "logger", "message", "run")} == {
        "level": "ERROR", "logger": "run", "message": "it failed: größer", "run": 7
    }  # fmt: skip
    assert "ValueError: größer" in failed["traceback"] and "größer" in path.read_text()
    assert (logged["logger"], logged["message"], logged["env"]) == ("run.agent", "two\nlines", "e1")
    assert "ERROR run [run=7]: it failed" in console.getvalue()


def test_warnings_of_the_model_and_tracebacks_are_in_the_log_of_their_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-this-test")
    config = load_config(write(tmp_path, lm={"model": "claude-opus-5-5", "temperature": 0.2, "max_retries": 0}))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    results = evaluate_config(config).results_dir
    text = (results / "run.log").read_text()
    assert text.count("does not accept `temperature`") == 1
    assert "Traceback" in text and "LlmUnavailableError" in text
    other = evaluate(write(tmp_path / "other")).results_dir
    assert "temperature" not in (other / "run.log").read_text()
    assert (results / "run.log").read_text() == text


def test_a_rejected_key_ends_the_evaluation_at_the_first_call(tmp_path):
    with MessagesServer(key="another") as server:
        path = write(tmp_path, lm={"model": "claude-opus-5-5", "base_url": server.url})
        with pytest.raises(LlmAuthError, match="rejects"):
            evaluate(path)
    assert server.statuses == [401]


def test_log_is_rotated_at_its_size(tmp_path):
    output = {"results_dir": "results", "log_format": "json", "log_max_bytes": 200, "log_backups": 2}
    results = evaluate(write(tmp_path, output=output)).results_dir
    names = sorted(path.name for path in results.glob("run.log*"))
    assert names == ["run.log", "run.log.1", "run.log.2"]
    lines = [line for name in names for line in (results / name).read_text().splitlines()]
    assert all(json.loads(line)["time"].endswith("Z") for line in lines)
    assert all((results / name).stat().st_size <= 200 for name in names)


def test_demo_of_the_documentation_runs(tmp_path, monkeypatch):
    """Every python block of docs/contracts/runtime.md, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/contracts/runtime.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "runtime.md", "exec"), namespace)
    assert namespace["metrics"]["mean_score"] == 1.0
