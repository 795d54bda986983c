"""SLURM: a job asked for through submitit, and what squeue, scontrol and sacct say of it.

A job gets a short list of this process's variables: no key, and not the mark by which a start ends what an earlier
one has left, for a job outlives the process that asked for it.
"""

from __future__ import annotations

import io
import math
import os
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
from autoqec.errors import InputError
from autoqec.system.process import child
from autoqec.system.scratch import scratch

# --slurm key -> submitit's name of it
KEYS = {
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
_EXPORTED = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "AUTOQEC_SANDBOX")
_TIME = re.compile(r"(?P<minutes>[1-9]\d*)|(?:(?P<days>\d+)-)?(?P<clock>\d+:[0-5]\d:[0-5]\d)")
_PATIENCE_S = 60.0
_INVALID = "Invalid job id"
# What a controller that is restarting or overrun lets sbatch say; a refusal of what was asked for reads otherwise.
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|zero bytes were transmitted|transport endpoint"
    r"|connection (refused|reset|timed out)|resource temporarily unavailable|temporarily unable|in standby mode",
    re.IGNORECASE,
)
WAITS_S = (2.0, 5.0, 15.0, 30.0)  # between one try to queue a job and the next
_ALIVE = (
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT",
)  # fmt: skip
OVER_LIMIT = ("TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")

Life = Literal["alive", "ended", "gone", "unreachable"]


class Job(NamedTuple):
    """life: alive in the queue; ended, and how is in `state`; gone: SLURM knows it no more; unreachable: nobody
    answers, which says nothing of the job. why: in SLURM's words."""

    life: Life
    state: str = ""
    why: str = ""


def parse(texts: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE`s of --slurm. InputError names what is none."""
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in KEYS or not value or not value.isprintable():
            mend = f"KEY=VALUE of {', '.join(KEYS)}"
            raise InputError(f"{text!r} is no option of a job", where="--slurm", mend=mend)
        found[key] = value
    for key, shape, form in (
        ("time", _TIME, "minutes, or [DAYS-]HH:MM:SS"),
        ("cpus", re.compile(r"[1-9]\d*"), "a number"),
        ("gpus", re.compile(r"[1-9]\d*"), "a number"),
        ("mem", re.compile(r"[1-9]\d*[KMGT]B?"), "a size: 8G, 4000M"),
    ):
        if key in found and not shape.fullmatch(found[key]):
            raise InputError(f"{found[key]!r} is not {form}", where=f"--slurm {key}", mend=f"{key}={form}")
    return found


def minutes(text: str) -> int:
    """`90`, `01:30:00` or `1-00:00:00` -> whole minutes, rounded up, at least one."""
    match = _TIME.fullmatch(text)
    assert match is not None, "parse() let it through"
    if match["minutes"]:
        return int(match["minutes"])
    hours, mins, seconds = map(int, match["clock"].split(":"))
    return max(1, (int(match["days"] or 0) * 24 + hours) * 60 + mins + math.ceil(seconds / 60))


def check(options: Mapping[str, str]) -> None:
    """Ask SLURM whether it would take such a job; nothing is queued. InputError in its words where it would not."""
    for command in ("sbatch", "srun", "squeue", "scancel"):
        if shutil.which(command) is None:
            mend = "start on a machine of the cluster, or leave out --executor slurm"
            raise InputError(f"`{command}` is not on the PATH", where="--executor slurm", mend=mend)
    _executor(Path(tempfile.gettempdir()), "autoqec-check", options)
    flags = [f"--{_flag(KEYS[key])}={_value(key, value)}" for key, value in options.items()]
    status, said = _ask("sbatch", "--test-only", *flags, "--wrap=true")
    if status != 0:
        raise _refusal(said, options)


def submit(
    work: Callable[..., None], *arguments: Any, folder: Path, name: str, options: Mapping[str, str], package: Path
) -> str:
    """Queue a job that calls `work(*arguments)`, an importable function, with the package at `package`; its number.

    folder: on a file system that the nodes share; script and logs go there. A controller that is away is asked again,
    `WAITS_S` apart, and first whether it took the job all the same. InputError where SLURM refuses, or stays away.
    """
    executor = _executor(folder, name, options)
    fixed = {**child.DEFAULTS, "PYTHONPATH": str(package), "SLURM_EXPORT_ENV": "ALL"}
    threads = str(options.get("cpus", "1"))
    fixed |= {key: threads for key in child.DEFAULTS if key.endswith("_NUM_THREADS")}
    executor.update_parameters(setup=[f"export {key}={shlex.quote(value)}" for key, value in fixed.items()])
    told = ""
    for wait in (0.0, *WAITS_S):
        time.sleep(wait)
        try:
            # What was not answered may have been taken all the same.
            return (find(name) if wait else None) or _queued(executor, work, arguments, options)
        except ConnectionError as error:
            told = str(error)
    tries = f"{len(WAITS_S) + 1} tries in {sum(WAITS_S):.0f} s"
    what, mend = f"SLURM took no job in {tries}: {_last(told)}", "start again with --resume once `sinfo` answers"
    raise InputError(what, where="--executor slurm", mend=mend)


def _queued(executor: Any, work: Callable[..., None], arguments: tuple[Any, ...], options: Mapping[str, str]) -> str:
    """The number of the job. ConnectionError where nobody answered, so that it may or may not be queued."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return str(executor.submit(work, *arguments).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        words = str(error) or said.getvalue()
        if _TRANSIENT.search(words):
            raise ConnectionError(words) from error
        raise _refusal(words, options) from error


def find(name: str) -> str | None:
    """The number of the job of this name that is queued or was lately; None where there is none.

    ConnectionError where SLURM does not answer.
    """
    status, said = _ask("squeue", "--noheader", f"--name={name}", "--states=all", "--format=%i|%T")
    if status != 0:
        raise ConnectionError(said)
    numbers = [line.split("|")[0].strip() for line in said.splitlines() if "|" in line]
    return min(numbers, key=int, default=None)


def look(job_id: str) -> Job:
    """What becomes of a job: squeue and scontrol first; accounting may be off, and is asked last."""
    status, said = _ask("squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T|%r")
    if status != 0 and _INVALID not in said:
        return Job("unreachable", why=_last(said))
    lines = [line for line in said.splitlines() if "|" in line] if status == 0 else []
    if not lines:
        return _accounted(job_id)
    state, _, reason = lines[0].strip().partition("|")
    if state in _ALIVE:
        return Job("alive", state, "" if reason == "None" else reason)
    return Job("ended", state, _details(job_id))


def cancel(job_id: str) -> None:
    """End a job, queued or running, without grace. What SLURM says against it is passed over: then it has ended."""
    _ask("scancel", "--signal=KILL", "--full", job_id)
    _ask("scancel", job_id)


def _accounted(job_id: str) -> Job:
    """A job that has left the queue, from the accounting where there is any."""
    if shutil.which("sacct") is None:
        return Job("gone")
    fields = "--format=State,ExitCode,Elapsed"
    status, said = _ask("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job_id}", fields)
    lines = [line for line in said.splitlines() if line.count("|") == 2] if status == 0 else []
    if not lines:
        return Job("gone", why=_last(said))
    state, code, elapsed = lines[-1].split("|")
    word = state.split()[0] if state.split() else ""  # "CANCELLED by 1000"
    if not word or word in _ALIVE:
        return Job("gone", why=f"its accounting still says {word or 'nothing'}")
    return Job("ended", word, f"exit code {code}, {elapsed} long")


def _details(job_id: str) -> str:
    status, said = _ask("scontrol", "--oneliner", "show", "job", job_id)
    known = dict(re.findall(r"(\w+)=(\S+)", said)) if status == 0 else {}
    parts = [("Reason", ""), ("ExitCode", "exit code "), ("RunTime", "ran "), ("TimeLimit", "limit ")]
    return ", ".join(f"{word}{known[key]}" for key, word in parts if known.get(key, "None") not in ("None", "(null)"))


def _executor(folder: Path, name: str, options: Mapping[str, str]) -> Any:
    submitit = optional.load("submitit", extra="slurm", where="--executor slurm")
    python = f"{shlex.quote(sys.executable)} -P -s"
    try:
        executor = submitit.SlurmExecutor(folder=folder, python=python)
    except RuntimeError as error:
        what, mend = "`srun` is not on the PATH", "start on a machine of the cluster"
        raise InputError(what, where="--executor slurm", mend=mend) from error
    exported = ",".join(variable for variable in _EXPORTED if variable in os.environ)
    asked = {KEYS[key]: _value(key, value) for key, value in options.items()}
    # Without a work characterisation key: clusters that do not keep them refuse any.
    more = {"export": exported, "chdir": "/"}
    executor.update_parameters(job_name=name, wckey="", stderr_to_stdout=True, additional_parameters=more, **asked)
    return executor


def _value(key: str, value: str) -> str | int:
    if key == "time":
        return minutes(value)
    return int(value) if key in ("cpus", "gpus") else value


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _refusal(said: str, options: Mapping[str, str]) -> InputError:
    asked = " ".join(f"--slurm {key}={value}" for key, value in options.items())
    mend = f"`sinfo` shows what there is; asked for: {asked or 'nothing'}"
    return InputError(f"SLURM refuses the job: {_last(said)}", where="--executor slurm", mend=mend)


def _last(said: str) -> str:
    """SLURM's errors, in one line."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line.strip()) for line in said.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))[:400] or "it says nothing"


def _ask(*argv: str) -> tuple[int, str]:
    """Status and words of one of SLURM's commands."""
    known = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    with scratch("slurm") as place:
        said = place / "said"
        limits = child.Limits(wallclock_s=_PATIENCE_S)
        ended = child.run(argv, cwd=place, env=known, limits=limits, stdout=said)
        return (ended.returncode or (1 if ended.killed else 0)), said.read_text(encoding="utf-8", errors="replace")
