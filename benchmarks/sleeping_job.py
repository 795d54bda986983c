"""Jobs of `benchmarks.slurm_throughput`: those of a run, with a Runner that sleeps and lists its measurements.

It imports what the job of a real round imports, and nothing of the orchestrator.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.contracts.round import RoundMetrics, RunnerConfig, utc_now
from autoqec.extensions.slurm import job
from autoqec.runner.provenance import write_round_pointer
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout


def sleep_of(number: int, range_s: tuple[float, float]) -> float:
    """Return the seconds that a round sleeps, the same each time."""
    return random.Random(number).uniform(*range_s)


def measure_round(*arguments: Any, range_s: tuple[float, float], measured: str) -> None:
    """Do what the job of a round does, with a sleep instead of training and measurement.

    Args:
        arguments: Those of `measure_round` of the job.
        range_s: Bounds of the seconds of a sleep.
        measured: File to which each measurement adds a line: round, attempt and job.
    """
    job.runner.run_round = partial(_run_round, range_s=range_s, measured=measured)  # type: ignore[assignment]
    job.measure_round(*arguments)


def _run_round(config: RunnerConfig, *, range_s: tuple[float, float], measured: str, **_: Any) -> RoundMetrics:
    line = f"{config.round_idx} {config.round_attempt_id} {job.own_job_id()}\n"
    fd = os.open(measured, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)
    started = utc_now()
    time.sleep(sleep_of(config.round_idx, range_s))
    layout = RoundLayout(Path(config.round_dir), config.round_idx)
    atomic.write_text(layout.config, files.dump_config(config.predecoder_config))
    atomic.write_bytes(layout.checkpoint, b"weights")
    atomic.write_text(layout.train_log, "0\t1.0\n")
    metrics = RoundMetrics(
        status="ok",
        delta_ler=0.001,
        ler_plain_classical=0.03,
        ler_predecoder=0.029,
        val_shots=4000,
        flops_per_syndrome=1000 + config.round_idx,
        n_params=100,
        train_wallclock_s=1.0,
        eval_wallclock_s=1.0,
        checkpoint_path=str(layout.checkpoint),
        measurement_started_at=started,
        measurement_finished_at=utc_now(),
    )
    atomic.write_json(layout.metrics, metrics.dump())
    write_round_pointer(config, metrics, repo_root=Path(config.round_dir).parents[2])
    return metrics
