"""SLURM: submission of jobs through submitit, and their state from squeue, scontrol and sacct.

A job gets a short list of this process's variables: no key, and not the mark of the run's owner, because a job outlives
the process that submitted it.
"""

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
from typing import Any, Literal, NamedTuple

from autoqec import optional
from autoqec.errors import UsageError
from autoqec.extensions.slurm import process as slurm_process
from autoqec.extensions.slurm.job import call_element
from autoqec.extensions.slurm.programs import run_command, run_sbatch, write_environment
from autoqec.system.process import child

# --slurm key -> submitit's name of it
OPTION_NAMES = {
    "time": "time",
    "cpus": "cpus_per_task",
    "mem": "mem",
    "gpus": "gpus_per_node",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "gres": "gres",
    "nodelist": "nodelist",
    "exclude": "exclude",
}
EXPORTED_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "AUTOQEC_SANDBOX")
_TIME = re.compile(r"(?P<minutes>[1-9]\d*)|(?:(?P<days>\d+)-)?(?P<clock>\d+:[0-5]\d:[0-5]\d)")
# Temporary files of a job are on its node's own disk if the cluster offers one.
NODE_SCRATCH = 'export TMPDIR="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"'
# submitit names the file of a call after the job once sbatch has answered. A job whose submission was not answered, or
# whose submitting process was killed, names it itself; the calls of all elements and repeated submissions are the same.
_CALL = f"{'?' * 32}.pkl"
_FIND_CALL = (
    'own_id="${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"; '
    'for call in {folder}/{call}; do ln "$call" {folder}/"$own_id"_submitted.pkl; done 2>/dev/null'
)
_INVALID, _ENVIRONMENT = "Invalid job id", "environment"
# What a controller that is restarting or overrun lets sbatch say; a refusal of what was asked for reads otherwise.
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|zero bytes were transmitted|transport endpoint"
    r"|connection (refused|reset|timed out)|resource temporarily unavailable|temporarily unable|in standby mode"
    r"|no answer in \d+ s",
    re.IGNORECASE,
)
_SEE_NODES = "`sinfo` shows what there is"
_REFUSALS = (
    ("invalid account|invalid qos", "`sacctmgr show associations user=$USER` lists your accounts, partitions and QOS"),
    ("policy|submit limit|MaxSubmit", "wait until jobs of yours end (`squeue --me`), or choose a smaller --parallel"),
    ("group not permitted", "choose another --slurm partition; `scontrol show partition` lists who may use one"),
)
RETRY_DELAYS_S = (2.0, 5.0, 15.0, 30.0)  # between one try to queue a job and the next
_ACTIVE_STATES = (
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT",
)  # fmt: skip
UNREACHABLE = "slurm-unreachable"
LIMIT_STATES = ("TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")

Life = Literal["alive", "ended", "gone", "unreachable"]


class Job(NamedTuple):
    """State of a job.

    Attributes:
        life: alive: in the queue; ended: `state` says how; gone: SLURM does not know it any more; unreachable: SLURM
            does
            not answer.
        state: SLURM's name of the state.
        why: SLURM's message.
    """

    life: Life
    state: str = ""
    why: str = ""


def parse_options(texts: Sequence[str], location: str = "--slurm") -> dict[str, str]:
    """Parse the `KEY=VALUE` texts of an option; UsageError names the first wrong one."""
    parsed = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in OPTION_NAMES or not value or not value.isprintable():
            hint = f"KEY=VALUE of {', '.join(OPTION_NAMES)}"
            raise UsageError(f"{text!r} is not a job option", location=location, hint=hint)
        parsed[key] = value
    for key, shape, form in (
        ("time", _TIME, "minutes, or [DAYS-]HH:MM:SS"),
        ("cpus", re.compile(r"[1-9]\d*"), "a number"),
        ("gpus", re.compile(r"[1-9]\d*"), "a number"),
        ("mem", re.compile(r"[1-9]\d*[KMGT]B?"), "a size: 8G, 4000M"),
    ):
        if key in parsed and not shape.fullmatch(parsed[key]):
            raise UsageError(f"{parsed[key]!r} is not {form}", location=f"{location} {key}", hint=f"{key}={form}")
    return parsed


def minutes(text: str) -> int:
    """Convert `90`, `01:30:00` or `1-00:00:00` to whole minutes, rounded up, at least one."""
    match = _TIME.fullmatch(text)
    assert match is not None, "parse() let it through"
    if match["minutes"]:
        return int(match["minutes"])
    hours, mins, seconds = map(int, match["clock"].split(":"))
    return max(1, (int(match["days"] or 0) * 24 + hours) * 60 + mins + math.ceil(seconds / 60))


def check(options: Mapping[str, str]) -> None:
    """Ask SLURM whether it would accept such a job; nothing is queued. UsageError with its message if it would not."""
    for command in ("sbatch", "srun", "squeue", "scancel"):
        if shutil.which(command) is None:
            hint = "start on a machine of the cluster, or leave out --executor slurm"
            raise UsageError(f"`{command}` is not on the PATH", location="--executor slurm", hint=hint)
    _executor(Path(tempfile.gettempdir()), "autoqec-check", options)
    status, output = run_sbatch("--test-only", *sbatch_flags(options), "--wrap=true")
    if status != 0:
        raise _rejection(output, options)


def sbatch_flags(options: Mapping[str, str]) -> list[str]:
    """Return the flags of sbatch for options of --slurm."""
    return [f"--{OPTION_NAMES[key].replace('_', '-')}={_value(key, value)}" for key, value in options.items()]


def submit(
    work: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    *,
    folder: Path,
    name: str,
    options: Mapping[str, str],
    package: Path,
    python: str | None = None,
) -> list[str]:
    """Queue a job that calls `work(*arguments[0])`, an importable function, with the package at `package`.

    Several tuples of arguments become one job array. A controller that does not answer is asked again,
    `RETRY_DELAYS_S` apart, first whether it accepted the job after all.

    Args:
        work: The function.
        arguments: Its arguments, for each element.
        folder: On a file system that the nodes share; script and logs go there. No job of another call waits in it.
        name: Unique name of the job.
        options: Options of `--slurm`.
        package: Directory that holds the package.
        python: Shell command of the Python in a container, which has the package; None: this process's.

    Returns:
        The ids, one per element.

    Raises:
        UsageError: SLURM refuses, or does not answer.
    """
    executor = _executor(folder, name, options, python)
    executor.update_parameters(array_parallelism=len(arguments))
    fixed = {**child.DEFAULT_ENVIRONMENT, "SLURM_EXPORT_ENV": "ALL"}
    fixed |= {"PYTHONPATH": str(package)} if python is None else {}
    threads = str(options.get("cpus", "1"))
    fixed |= {key: threads for key in child.DEFAULT_ENVIRONMENT if key.endswith("_NUM_THREADS")}
    exports = [f"export {key}={shlex.quote(value)}" for key, value in fixed.items()]
    folder.mkdir(parents=True, exist_ok=True)
    write_environment(folder / _ENVIRONMENT, EXPORTED_VARIABLES)
    for call in folder.glob(_CALL):  # of a submission that was cut off; the job of this one must not find it
        call.unlink(missing_ok=True)
    find_call = _FIND_CALL.format(folder=shlex.quote(str(folder.absolute())), call=_CALL)
    executor.update_parameters(setup=[*exports, NODE_SCRATCH, find_call])
    return until_accepted(name, lambda: _submit_once(executor, work, arguments, options))


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
            last_error = str(error)
    tries = f"{len(RETRY_DELAYS_S) + 1} tries in {sum(RETRY_DELAYS_S):.0f} s"
    message, hint = (
        f"SLURM took no job in {tries}: {_error_summary(last_error)}",
        "start again with --resume once `sinfo` answers",
    )
    raise UsageError(message, location="--executor slurm", hint=hint, code=UNREACHABLE)


def _submit_once(
    executor: Any, work: Callable[..., None], arguments: Sequence[tuple[Any, ...]], options: Mapping[str, str]
) -> list[str]:
    """Return the ids of the elements. ConnectionError if SLURM did not answer, so that it may or may not be queued."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    output = io.StringIO()
    try:
        with redirect_stderr(output):
            if len(arguments) == 1:
                return [str(executor.submit(call_element, work, arguments).job_id)]
            calls = [work] * len(arguments), [arguments] * len(arguments)
            return [str(job.job_id) for job in executor.map_array(call_element, *calls)]
    except (FailedJobError, FailedSubmissionError) as error:
        error_text = str(error) or output.getvalue()
        raise submission_error(error_text, options) from error


def find_job(name: str, index: int | None = None) -> str | None:
    """Return the id of the job of this name that is queued or was lately; None if there is none.

    Args:
        name: Name of the job or array.
        index: Element of the array; None for a job of its own.

    Raises:
        ConnectionError: SLURM does not answer.
    """
    return find_jobs(name).get(index)


def find_jobs(name: str) -> dict[int | None, str]:
    """Return index -> id of the elements of the oldest job of this name; the index of a job of its own is None.

    Raises:
        ConnectionError: SLURM does not answer.
    """
    command = ("squeue", "--noheader", "--array", f"--name={name}", "--states=all", "--format=%F|%K")
    status, output = run_command(*command)
    if status != 0:
        raise ConnectionError(output)
    lines = [[part.strip() for part in line.split("|")] for line in output.splitlines() if "|" in line]
    oldest = min((number for number, _ in lines), key=int, default="")
    indices = sorted((int(index) if index.isdigit() else -1) for number, index in lines if number == oldest)
    return {(None if index < 0 else index): oldest if index < 0 else f"{oldest}_{index}" for index in indices}


def query_job(job_id: str) -> Job:
    """Return the state of a job: from squeue and scontrol, else from accounting, which may be off."""
    status, output = run_command("squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T|%r")
    if status != 0 and _INVALID not in output:
        return Job("unreachable", why=_error_summary(output))
    lines = [line for line in output.splitlines() if "|" in line] if status == 0 else []
    if not lines:
        return _accounting_status(job_id)
    state, _, reason = lines[0].strip().partition("|")
    if state in _ACTIVE_STATES:
        return Job("alive", state, "" if reason == "None" else reason)
    return Job("ended", state, _details(job_id))


def cancel(job_id: str) -> bool:
    """End a job, queued or running, without grace; return whether SLURM answered.

    Other errors of scancel are ignored, because the job has ended then.
    """
    status, output = run_command("scancel", "--signal=KILL", "--full", job_id)
    if status != 0 and _TRANSIENT.search(output):
        return False
    run_command("scancel", job_id)
    return True


def _accounting_status(job_id: str) -> Job:
    """Return the state of a job that has left the queue, from accounting if there is any."""
    if shutil.which("sacct") is None:
        return Job("gone")
    fields = "--format=State,ExitCode,Elapsed"
    status, output = run_command("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job_id}", fields)
    lines = [line for line in output.splitlines() if line.count("|") == 2] if status == 0 else []
    if not lines:
        return Job("gone", why=_error_summary(output))
    state, code, elapsed = lines[-1].split("|")
    state_word = state.split()[0] if state.split() else ""  # "CANCELLED by 1000"
    if not state_word or state_word in _ACTIVE_STATES:
        return Job("gone", why=f"its accounting still says {state_word or 'nothing'}")
    return Job("ended", state_word, f"exit code {code}, {elapsed} long")


def _details(job_id: str) -> str:
    status, output = run_command("scontrol", "--oneliner", "show", "job", job_id)
    known = dict(re.findall(r"(\w+)=(\S+)", output)) if status == 0 else {}
    parts = [("Reason", ""), ("ExitCode", "exit code "), ("RunTime", "ran "), ("TimeLimit", "limit ")]
    return ", ".join(
        f"{state_word}{known[key]}" for key, state_word in parts if known.get(key, "None") not in ("None", "(null)")
    )


def _executor(folder: Path, name: str, options: Mapping[str, str], python: str | None = None) -> Any:
    submitit = optional.load("submitit", extra="slurm", location="--executor slurm")
    # submitit adds its own module to this command, which `slurm_process` takes the place of.
    python = f"{python or f'{shlex.quote(sys.executable)} -P -s'} -u -m {slurm_process.__name__}"
    try:
        executor = submitit.SlurmExecutor(folder=folder, python=python)
    except RuntimeError as error:
        message, hint = "`srun` is not on the PATH", "start on a machine of the cluster"
        raise UsageError(message, location="--executor slurm", hint=hint) from error
    requested = {OPTION_NAMES[key]: _value(key, value) for key, value in options.items()}
    # Without a work characterisation key: clusters that do not keep them refuse any.
    more = {"export-file": str(folder.absolute() / _ENVIRONMENT), "chdir": "/", "requeue": True}
    executor.update_parameters(job_name=name, wckey="", stderr_to_stdout=True, additional_parameters=more, **requested)
    return executor


def _value(key: str, value: str) -> str | int:
    if key == "time":
        return minutes(value)
    return int(value) if key in ("cpus", "gpus") else value


def submission_error(output: str, options: Mapping[str, str]) -> Exception:
    """Return ConnectionError if sbatch got no answer, so that the job may or may not be queued, else the refusal."""
    return ConnectionError(output) if _TRANSIENT.search(output) else _rejection(output, options)


def _rejection(output: str, options: Mapping[str, str]) -> UsageError:
    options_text = " ".join(f"--slurm {key}={value}" for key, value in options.items())
    advice = next((hint for pattern, hint in _REFUSALS if re.search(pattern, output, re.IGNORECASE)), _SEE_NODES)
    hint = f"{advice}; asked for: {options_text}" if options_text else advice
    return UsageError(f"SLURM refuses the job: {_error_summary(output)}", location="--executor slurm", hint=hint)


def _error_summary(output: str) -> str:
    """Return SLURM's errors in one line."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line.strip()) for line in output.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))[:400] or "no message"
