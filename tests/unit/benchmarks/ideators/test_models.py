"""Comparisons with language models, and with trained agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.extensions.continual.runtime.main import evaluate
from autoqec.store import jsonl
from benchmarks.ideators.__main__ import main
from benchmarks.ideators.table import Table, pack
from tests.support.messages_server import MessagesServer, fail, say_json
from tests.unit.benchmarks.ideators.test_simulation import planted
from tests.unit.extensions.continual.runtime.test_checkpoint_agents import config

MLP = {"type": "mlp", "mlp": {"hidden": 64, "depth": 1}, "training": {"learning_rate": 0.0006}}
ANSWER = {"hypothesis": "small steps", "slug": "small", "fork_from": [], "proposal": MLP}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(planted(60), tmp_path_factory.mktemp("table") / "table.jsonl")


def written(table: Table, path: Path) -> Path:
    """Write `table` as the program that measures tables does."""
    shots = {"env": "smoke", "shots": int(table.baseline.size)}
    jsonl.append(path, shots | {"kind": "reference", "name": "mwpm", "plain": "mwpm", "failures": pack(table.baseline)})
    for entry in table.entries:
        differing_shots = (
            None
            if entry.differing_shots is None
            else pack(np.isin(np.arange(table.baseline.size), entry.differing_shots))
        )
        line = {"kind": "cell", "config": entry.config, "fidelity": "full", "seed": 0, "status": entry.status}
        line |= {"reason": entry.reason, "n_params": entry.n_params, "flops_per_syndrome": entry.flops}
        jsonl.append(path, shots | line | {"seconds": entry.seconds, "differs": differing_shots})
    return path


def bench(file: Path, capsys: pytest.CaptureFixture[str], *more: str, rounds: int = 6) -> dict[str, dict[str, Any]]:
    argv = ["--table", str(file), "--seeds", "2", "--rounds", str(rounds), "--json", *more]
    assert main(argv) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    return {line["strategy"]: line for line in lines}


def test_cost_of_model_strategies_is_reported(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessagesServer() as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        server.answer = lambda body: say_json(ANSWER)
        server.script(fail(500))
        found = bench(file, capsys, "--strategies", "llm,hybrid:llm", "--model", "claude-opus-5-5", rounds=4)
        assert server.requests and {"random", "llm", "hybrid:llm"} == set(found)
    assert (
        found["llm"]["dollars"] > 0 == found["random"]["dollars"]
        and found["llm"]["dollars"] > found["hybrid:llm"]["dollars"]
    )


def test_trained_agent_is_compared_with_memoryless_agent(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpoint = evaluate(config(tmp_path)).results_dir / "c/latest"
    rules = [
        {"when": "F: .*Proposal 2 of", "say": '{"type": "mlp", "mlp.depth": 1, "training.learning_rate": 0.0005}'},
        {"when": "F: .*Proposal 1 of", "say": '{"type": "conv", "conv.layers": 2, "training.learning_rate": 0.009}'},
    ]
    (tmp_path / "says.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules), encoding="utf-8")
    more = ("--strategies", "memory", "--reference", "memoryless", "--ideator-memory", str(checkpoint))
    score = tmp_path / "scores.md"
    found = bench(
        file,
        capsys,
        *more,
        "--model",
        f"scripted:{tmp_path / 'says.jsonl'}",
        "--write",
        str(score),
        "--note",
        "A note.",
    )
    gain = found["memory"]
    assert set(found) == {"memory", "memoryless"} and found["memoryless"]["gap"] == 0.0
    assert gain["mean"] != found["memoryless"]["mean"] and gain["gap_low"] <= gain["gap"] <= gain["gap_high"]
    text = score.read_text(encoding="utf-8")
    assert text.rstrip().endswith("A note.")
    assert "minus memoryless [95%]" in text and "because a model gave no usable answer" in text


def test_model_is_compared_with_tpe_at_equal_time(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two scripted policies of known quality: every proposal of the expert builds a network, few of the novice's do."""
    expert = bench(file, capsys, "--model", "scripted:expert")
    novice = bench(file, capsys, "--model", "scripted:novice")
    assert set(expert) == {"tpe", "llm", "hybrid:llm"} and expert["llm"]["reference"] == "tpe"
    assert expert["llm"]["built"] == 1.0 and expert["tpe"]["built"] == 1.0
    assert novice["llm"]["built"] < 0.7, "neither prose nor the search behind it counts"
    assert expert["tpe"]["regret"] == 0.0
    for found in (expert, novice):
        assert found["llm"]["regret_low"] <= found["llm"]["regret"] <= found["llm"]["regret_high"]
