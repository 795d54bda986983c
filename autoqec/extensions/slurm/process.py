"""Process of a SLURM job that submitit submitted: calls the job's function, as the process of submitit itself does.

    python -u -m autoqec.extensions.slurm.process [OPTIONS OF PYTHON] -m submitit.core._submit FOLDER

It stands between Python and submitit's own module, reads and writes the same files and handles the same signals. The
imports of submitit's process, among them asyncio and numpy, would take half of the CPU time of a job's start.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from autoqec.extensions.slurm.job import JobEndingError, own_job_id
from autoqec.extensions.slurm.programs import run_command

CALL_WAIT_S, CALL_POLL_S = 60.0, 0.2  # until submitit has given the file of the call its name
# A job that ran for most of its time is over its limit, any other is preempted: the rule of submitit.
_LIMIT_SHARE, _LIMIT_MARGIN_S = 0.8, 600.0
_LOGGER = logging.getLogger(__name__)


class Call:
    """The function and arguments of a job, with the attributes that submitit pickles.

    Attributes:
        function: What the job calls.
        args: Its arguments.
        kwargs: Its named arguments.
        _timeout_min: Time limit of the job, in minutes.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    _timeout_min: int

    @property
    def limit_s(self) -> float:
        """Time limit of the job, in seconds."""
        return 60.0 * self._timeout_min


class _CallUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) == ("submitit.core.utils", "DelayedSubmission"):
            return Call
        return super().find_class(module_name, global_name)


def run_call(folder: Path) -> None:
    """Call the function of this job, and write what it returned, or its error, to the file of its result.

    Args:
        folder: Directory of submitit's files.

    Raises:
        FileNotFoundError: The file of the call did not appear.
        Exception: As the function.
    """
    job_id, started = own_job_id(), time.monotonic()
    _LOGGER.info("SLURM job %s on %s", job_id, os.uname().nodename)
    os.environ["SUBMITIT_FOLDER"] = str(folder)  # where submitit's JobEnvironment looks for it
    result_path = folder / f"{job_id}_{os.environ.get('SLURM_PROCID', '0')}_result.pkl"
    try:
        call = _load_call(folder / f"{job_id}_submitted.pkl")
        _handle_signals(job_id, started, call.limit_s)
        _write_result(result_path, ("success", call.function(*call.args, **call.kwargs)))
    except Exception:
        _write_result(result_path, ("error", traceback.format_exc()))
        raise
    _LOGGER.info("SLURM job %s completed", job_id)


def _load_call(path: Path) -> Call:
    """Return the call in a file, which submitit may be about to rename. Importing its function collects no garbage."""
    deadline = time.monotonic() + CALL_WAIT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(CALL_POLL_S)
    gc.disable()
    try:
        with path.open("rb") as stream:
            call = _CallUnpickler(stream).load()
    finally:
        gc.freeze()
        gc.enable()
    assert isinstance(call, Call), f"{path} holds a {type(call).__name__}"
    return call


def _handle_signals(job_id: str, started: float, limit_s: float) -> None:
    """End the call at its time limit, and requeue the job if it is preempted; SLURM sends SIGUSR2 before both."""

    def end_job(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - started >= min(_LIMIT_SHARE * limit_s, limit_s - _LIMIT_MARGIN_S):
            raise JobEndingError("SLURM is going to end this job at its time limit")
        status, output = run_command("scontrol", "requeue", job_id)
        if status != 0:
            raise ConnectionError(f"preempted, and SLURM did not queue the job again: {output}")
        _LOGGER.info("SLURM job %s is preempted and queued again", job_id)
        sys.exit(-1)

    for ignored in (signal.SIGTERM, signal.SIGCONT):  # SIGTERM is for the function; children do not inherit handlers
        signal.signal(ignored, lambda *_: None)
    signal.signal(signal.SIGUSR2, end_job)


def _write_result(path: Path, result: tuple[str, Any]) -> None:
    """Write the file that submitit reads a result from. It is complete as soon as it is visible.

    The process that submitted the job may have removed the directory, if it has the files that it needs.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        temporary.write_bytes(pickle.dumps(result))
        temporary.replace(path)


if __name__ == "__main__":
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    run_call(Path(sys.argv[-1]).absolute())
