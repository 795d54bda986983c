"""Jobs of rounds in tests: what a job does, with a Runner that returns at once unless the test blocks a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.contracts.round import RoundMetrics, RunnerConfig, utc_now
from autoqec.runner import job
from tests.crash import canned
from tests.support import rounds

MEASURED_S = 200.0


def blocker(run_dir: Path, number: int) -> Path:
    """Return the file whose existence keeps a round from ending."""
    return run_dir / f"block_{number}"


def work_rounds(*arguments: Any) -> None:
    """Stand for `runner.job.work_rounds` in the process that submits; called in the job."""
    job.runner.run_round = run_round
    finished = utc_now()
    times = {"measurement_started_at": finished - timedelta(seconds=MEASURED_S), "measurement_finished_at": finished}
    rounds.metrics = partial(rounds.metrics, **times)
    job.work_rounds(*arguments)


def run_round(config: RunnerConfig, *, is_cancelled: Callable[[], bool], on_event: Any = None) -> RoundMetrics:
    while blocker(Path(config.round_dir).parent, config.round_idx).exists():
        if is_cancelled():
            raise job.runner.CancelledError
        time.sleep(0.05)
    return canned.run_round(config, on_event=on_event)
