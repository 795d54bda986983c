"""Submission of SLURM jobs through submitit, and their options."""

from __future__ import annotations

import io
import math
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from autoqec import optional
from autoqec.errors import UsageError
from autoqec.extensions.slurm.commands import (
    NODE_SCRATCH,
    error_summary,
    is_transient,
    run_command,
    write_environment,
)
from autoqec.extensions.slurm.job import call_element
from autoqec.extensions.slurm.jobs import find_jobs
from autoqec.installation import IMPORT_DIR
from autoqec.system.process import child

KEYS = ("time", "cpus", "mem", "gpus", "gres", "partition", "account", "qos", "constraint", "nodelist", "exclude")
_SUBMITIT_NAMES = {"cpus": "cpus_per_task", "gpus": "gpus_per_node"}  # of the keys that have another name there
MAX_ARRAY = 500  # elements; clusters allow 1,001 unless configured otherwise
MARGIN_MIN, MARGIN_GB = 15, 1.0  # so that the limits of the work apply before those of its job
RETRY_DELAYS_S = (2.0, 5.0, 15.0, 30.0)  # between one try to queue a job and the next
UNREACHABLE = "slurm-unreachable"
_TIME = re.compile(r"(?P<minutes>[1-9]\d*)|(?:(?P<days>\d+)-)?(?P<clock>\d+:[0-5]\d:[0-5]\d)")
_NUMBER = (re.compile(r"[1-9]\d*"), "a number")
_FORMS = {
    "time": (_TIME, "minutes, or [DAYS-]HH:MM:SS"),
    "cpus": _NUMBER,
    "gpus": _NUMBER,
    "mem": (re.compile(r"[1-9]\d*[KMGT]B?"), "a size: 8G, 4000M"),
}
_REFUSALS = {
    "invalid account|invalid qos": "`sacctmgr show associations user=$USER` lists your accounts, partitions and QOS",
    "policy|submit limit|MaxSubmit": "wait until jobs of yours end (`squeue --me`), or choose a smaller --parallel",
    "group not permitted": "choose another --slurm partition; `scontrol show partition` lists who may use one",
    "": "`sinfo` shows what there is",
}
# submitit names the file of a call after the job once sbatch has answered. A job whose submission was not answered, or
# whose submitting process was killed, names it itself; the calls of all elements and repeated submissions are the same.
_CALL = f"{'?' * 32}.pkl"
_FIND_CALL = (
    'own_id="${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"; '
    'for call in {folder}/{call}; do ln "$call" {folder}/"$own_id"_submitted.pkl; done 2>/dev/null'
)


def parse_options(texts: Sequence[str], location: str = "--slurm") -> dict[str, str]:
    """Parse the `KEY=VALUE` texts of an option; UsageError names the first wrong one."""
    parsed = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in KEYS or not value or not value.isprintable():
            hint = f"KEY=VALUE of {', '.join(KEYS)}"
            raise UsageError(f"{text!r} is not a job option", location=location, hint=hint)
        shape, form = _FORMS.get(key, (None, ""))
        if shape is not None and not shape.fullmatch(value):
            raise UsageError(f"{value!r} is not {form}", location=f"{location} {key}", hint=f"{key}={form}")
        parsed[key] = value
    return parsed


def minutes(text: str) -> int:
    """Convert `90`, `01:30:00` or `1-00:00:00` to whole minutes, rounded up, at least one."""
    match = _TIME.fullmatch(text)
    assert match is not None, "parse_options() let it through"
    if match["minutes"]:
        return int(match["minutes"])
    hours, mins, seconds = map(int, match["clock"].split(":"))
    return max(1, (int(match["days"] or 0) * 24 + hours) * 60 + mins + math.ceil(seconds / 60))


def sbatch_flags(options: Mapping[str, str]) -> list[str]:
    """Return the flags of sbatch for options of --slurm."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in _submitit_parameters(options).items()]


def _submitit_parameters(options: Mapping[str, str]) -> dict[str, str | int]:
    values = {key: minutes(value) if key == "time" else value for key, value in options.items()}
    return {_SUBMITIT_NAMES.get(key, key): value for key, value in values.items()}


def check(options: Mapping[str, str]) -> None:
    """Ask SLURM whether it would accept such a job; nothing is queued. UsageError with its message if it would not."""
    for command in ("sbatch", "srun", "squeue", "scancel"):
        if shutil.which(command) is None:
            hint = "start on a machine of the cluster, or leave out --executor slurm"
            raise UsageError(f"`{command}` is not on the PATH", location="--executor slurm", hint=hint)
    _executor(Path(tempfile.gettempdir()), "autoqec-check", options)
    status, output = run_command("sbatch", "--test-only", *sbatch_flags(options), "--wrap=true")
    if status != 0:
        raise _refusal(output, options)


def submit(
    work: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    *,
    folder: Path,
    name: str,
    options: Mapping[str, str],
    python: str | None = None,
) -> list[str]:
    """Queue a job that calls `work(*arguments[0])`; several tuples of arguments become one job array.

    Args:
        work: An importable function of this package.
        arguments: Its arguments, for each element.
        folder: On a file system that the nodes share; script and logs go there. No job of another call waits in it.
        name: Unique name of the job.
        options: Options of `--slurm`.
        python: Shell command of the Python in a container, which has the package; None: this process's.

    Returns:
        The ids, one per element.

    Raises:
        UsageError: SLURM refuses, or does not answer.
    """
    executor = _executor(folder, name, options, python)
    threads = {key: options.get("cpus", "1") for key in child.DEFAULT_ENVIRONMENT if key.endswith("_NUM_THREADS")}
    fixed = {**child.DEFAULT_ENVIRONMENT, **threads, "SLURM_EXPORT_ENV": "ALL"}
    fixed |= {"PYTHONPATH": str(IMPORT_DIR)} if python is None else {}
    exports = [f"export {key}={shlex.quote(value)}" for key, value in fixed.items()]
    folder.mkdir(parents=True, exist_ok=True)
    write_environment(_environment(folder))
    for call in folder.glob(_CALL):  # of a submission that was cut off; the job of this one must not find it
        call.unlink(missing_ok=True)
    find_call = _FIND_CALL.format(folder=shlex.quote(str(folder.absolute())), call=_CALL)
    executor.update_parameters(setup=[*exports, NODE_SCRATCH, find_call], array_parallelism=len(arguments))

    def submit_once() -> list[str]:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        output = io.StringIO()
        try:
            with redirect_stderr(output):
                if len(arguments) == 1:
                    return [str(executor.submit(call_element, work, arguments).job_id)]
                calls = [work] * len(arguments), [arguments] * len(arguments)
                return [str(job.job_id) for job in executor.map_array(call_element, *calls)]
        except (FailedJobError, FailedSubmissionError) as error:
            raise submission_error(str(error) or output.getvalue(), options) from error

    return until_accepted(name, submit_once)


def until_accepted(name: str, submit_once: Callable[[], list[str]]) -> list[str]:
    """Return the ids of a job of this unique name: `submit_once` is repeated while it raises ConnectionError.

    Raises:
        UsageError: SLURM refuses, or (`code` is UNREACHABLE) does not answer.
    """
    last_error = ""
    for wait in (0.0, *RETRY_DELAYS_S):
        time.sleep(wait)
        try:
            # What was not answered may have been taken all the same.
            found = find_jobs(name) if wait else {}
            return [*found.values()] if found else submit_once()
        except ConnectionError as error:
            last_error = error_summary(str(error))
    message = f"SLURM took no job in {len(RETRY_DELAYS_S) + 1} tries in {sum(RETRY_DELAYS_S):.0f} s: {last_error}"
    hint = "start again with --resume once `sinfo` answers"
    raise UsageError(message, location="--executor slurm", hint=hint, code=UNREACHABLE)


def submission_error(output: str, options: Mapping[str, str]) -> Exception:
    """Return ConnectionError if sbatch got no answer, so that the job may or may not be queued, else the refusal."""
    return ConnectionError(output) if is_transient(output) else _refusal(output, options)


def _refusal(output: str, options: Mapping[str, str]) -> UsageError:
    asked_for = " ".join(f"--slurm {key}={value}" for key, value in options.items())
    hint = next(hint for pattern, hint in _REFUSALS.items() if re.search(pattern, output, re.IGNORECASE))
    hint += f"; asked for: {asked_for}" if asked_for else ""
    return UsageError(f"SLURM refuses the job: {error_summary(output)}", location="--executor slurm", hint=hint)


def _environment(folder: Path) -> Path:
    return folder.absolute() / "environment"


def _executor(folder: Path, name: str, options: Mapping[str, str], python: str | None = None) -> Any:
    submitit = optional.load("submitit", extra="slurm", location="--executor slurm")
    executor = submitit.SlurmExecutor(folder=folder, python=python or f"{shlex.quote(sys.executable)} -P -s")
    # Without a work characterisation key: clusters that do not keep them refuse any.
    more = {"export-file": str(_environment(folder)), "chdir": "/", "requeue": True}
    executor.update_parameters(job_name=name, wckey="", stderr_to_stdout=True, additional_parameters=more)
    executor.update_parameters(**_submitit_parameters(options))
    return executor
