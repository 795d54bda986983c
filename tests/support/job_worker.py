"""Jobs of rounds in tests: what a job does, with a Runner that returns at once unless the test blocks a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.extensions.slurm import job
from tests.crash import canned


def blocker(run_dir: Path, number: int) -> Path:
    """Return the file whose existence keeps a round from ending."""
    return run_dir / f"block_{number}"


def measure_round(*arguments: Any) -> None:
    """Stand for the function of the job in the process that submits; called in the job."""
    job.runner.run_round = run_round
    job.measure_round(*arguments)


def run_round(config: RunnerConfig, *, is_cancelled: Callable[[], bool], on_event: Any = None) -> RoundMetrics:
    while blocker(Path(config.round_dir).parent, config.round_idx).exists():
        if is_cancelled():
            raise job.runner.CancelledError
        time.sleep(0.05)
    return canned.run_round(config, on_event=on_event)
