"""Measure the CPU time of a SLURM job's process from its start until it claims and begins its first round.

    python -m benchmarks.job_start --starts 20

starts the process as the script of a job does, one after another and without SLURM. Without byte code of the package
(`python -m compileall autoqec` writes it, and so does an installation) each start compiles its modules, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.contracts.job import JobOrder
from autoqec.contracts.round import RunnerConfig
from autoqec.extensions.slurm import job as slurm_job
from autoqec.extensions.slurm import process as slurm_process
from autoqec.installation import IMPORT_DIR
from autoqec.runner import job
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout
from autoqec.system import machine
from autoqec.system.process import child
from benchmarks.parallel import ENV, MLP

JOB_ID = "7"


def spent_ms() -> float:
    """Return the CPU time of this process so far, in milliseconds."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (spent.ru_utime + spent.ru_stime)


def work_rounds(round_dir: str, number: int, *, measured: str) -> None:
    """Do what `runner.job.work_rounds` does until the round begins, and add both times to a file."""
    claim, times = job._claim, list[float]()

    def timed_claim(*arguments: Any) -> bool:
        is_claimed = claim(*arguments)
        times.append(spent_ms())
        return is_claimed

    def run_round(config: RunnerConfig, **_: Any) -> None:
        with Path(measured).open("a") as stream:
            stream.write(f"{times[0]} {spent_ms()}\n")
        raise job.runner.CancelledError

    job._claim, job.runner.run_round = timed_claim, run_round  # type: ignore[assignment]
    job.work_rounds(round_dir, number)


def start(directory: Path, measured: Path) -> None:
    """Write an order and its call, and run the process of the job."""
    from submitit.core.utils import DelayedSubmission

    layout = RoundLayout(directory, 1)
    config = RunnerConfig(env_yaml=ENV.read_text(), predecoder_config=MLP, profile="smoke", round_dir=str(directory))
    order = JobOrder(
        name="a-job", options={"time": "5"}, code_sha256=machine.code_sha256(), needs_sandbox=False, config=config
    )
    layout.job_dir.mkdir(parents=True)
    atomic.write_json(layout.job, order.dump())
    call = partial(work_rounds, measured=str(measured))
    delayed = DelayedSubmission(slurm_job.call_element, call, [(str(directory), 1)])
    delayed.set_timeout(5, 3)
    delayed.dump(layout.job_dir / f"{JOB_ID}_submitted.pkl")
    words = ["-P", "-s", "-u", "-m", slurm_process.__name__, "-u", "-m", "submitit.core._submit", str(layout.job_dir)]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(IMPORT_DIR), "SLURM_JOB_ID": JOB_ID}
    env = {**child.DEFAULT_ENVIRONMENT, **variables}
    subprocess.run([sys.executable, *words], env=env, cwd="/", check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measured = Path(directory, "measured")
        for index in range(chosen.starts):
            start(Path(directory, f"round_{index}"), measured)
        lines = [[float(part) for part in line.split()] for line in measured.read_text().splitlines()]
    assert len(lines) == chosen.starts
    for what, times in zip(("claim", "begin of the round"), zip(*lines, strict=True), strict=True):
        print(
            f"{what}: {statistics.median(times):.0f} ms (median of {len(times)}, {min(times):.0f} to {max(times):.0f})"
        )


if __name__ == "__main__":
    main()
