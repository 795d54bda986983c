"""Measure agents and environments, each figure as a ratio within one run; part of `make bench`.

The figures are wall-clock ratios, each the best of several repetitions. Run them on an idle machine: on a busy one, two
workers get two shares of the CPU and look faster than they are. The load is recorded with the figure.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from pathlib import Path

import pytest

from autoqec import locate
from autoqec.extensions.continual.agents.base import MemoryAgent, MemoryAgentConfig
from autoqec.extensions.continual.environments import ParallelEnvironments, SerialEnvironments
from autoqec.extensions.continual.environments.datasets import QAEnvDataset, QAEnvDatasetConfig
from autoqec.extensions.continual.environments.design import DesignEnv, EnvFeatures, PredecoderDraft
from autoqec.extensions.continual.environments.routines import ScreenRoutine
from autoqec.extensions.continual.runtime import RunTime, RunTimeConfig
from autoqec.extensions.language_models.clients.base import Request
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.store import files
from benchmarks.table import HERE, Row, record

REPEATS = 3
WORKERS, EPISODES, LM_LATENCY_S = 100, 1000, 0.05
DESIGNS, CORES = 8, 2
KILL_TEST = (
    "tests/unit/extensions/continual/runtime/test_checkpoints.py"
    "::test_resume_after_any_of_fifty_kills_equals_the_uninterrupted_run"
)


def slow(request: Request) -> str:
    time.sleep(LM_LATENCY_S)
    return "a"


def validation_row() -> Row:
    """Measure validation with a hundred threads, one model and one memory that must not change."""
    rows = tuple({"question": f"q{number}", "answer": "a"} for number in range(EPISODES))
    dataset = QAEnvDataset(QAEnvDatasetConfig(items=rows))
    agent = MemoryAgent(MemoryAgentConfig(), ScriptedLM(slow))
    config = RunTimeConfig(
        verbose=False, max_envs_to_visit=0, run_validation_at_start=True, validation_num_workers=WORKERS
    )
    before, durations = agent.memory.snapshot(), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        RunTime(config, dataset, agent, validation_dataset=dataset).run()
        durations.append(time.perf_counter() - start)
    same = "the same bytes" if agent.memory.snapshot() == before else "CHANGED"
    ideal = math.ceil(EPISODES / WORKERS) * LM_LATENCY_S
    return Row(
        f"validation, {WORKERS} workers, a model of {1000 * LM_LATENCY_S:.0f} ms",
        f"{min(durations) / ideal:.2f} x the ideal time; memory {same}",
        "aim: <= 1.5 x",
        f"{EPISODES} episodes of one step, best of {REPEATS}",
    )


def parallel_row() -> Row:
    """Measure the screening routine on designs of one size, sequentially and in two running worker processes."""
    text = files.dump_config(files.load_env(locate.env_file("smoke"))[0].dump())
    features = EnvFeatures.of(files.parse_env(text, location="smoke"))
    routine = ScreenRoutine(text, train_shots=40_000, finetune_shots=0, val_shots=10_000)
    envs = [
        DesignEnv(PredecoderDraft(features, {"type": "mlp", "mlp.hidden": 64 + number, "mlp.depth": 2}))
        for number in range(DESIGNS)
    ]
    serial, times = SerialEnvironments(envs, 0), list[tuple[float, float]]()
    with ParallelEnvironments([env.clone() for env in envs], 0, n_workers=CORES) as parallel:
        same = serial.get_reward(routine) == parallel.get_reward(routine)  # and warms both up
        for _ in range(REPEATS):
            marks = [time.perf_counter()]
            for batch in (serial, parallel):
                batch.get_reward(routine)
                marks.append(time.perf_counter())
            times.append((marks[1] - marks[0], marks[2] - marks[1]))
    ratio = min(serial_s for serial_s, _ in times) / min(parallel_s for _, parallel_s in times)
    return Row(
        f"ParallelEnvironments, {CORES} workers, screen routine",
        f"{ratio:.2f} x serial; {'the same' if same else 'OTHER'} rewards",
        "SerialEnvironments; aim: >= 1.7 x",
        f"{DESIGNS} designs, 40,000 shots to train, best of {REPEATS}; load {os.getloadavg()[0]:.1f} at its end",
    )


def kill_row() -> Row:
    """Run the test that kills a run at fifty of its disk writes, without its output."""
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main(["-q", "-p", "no:cacheprovider", str(Path(HERE).parent / KILL_TEST)])
    return Row(
        "a run killed at one of its writes, then resumed",
        "50 of 50 equal the uninterrupted run" if status == 0 else f"NOT ALL (pytest status {int(status)})",
        "aim: all",
        "50 calls, evenly spread over fsync, replace, mkdir, write, symlink, unlink",
    )


def main() -> None:
    rows = [validation_row(), parallel_row(), kill_row()]
    record("agents and environments", rows)
    for row in rows:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    main()
