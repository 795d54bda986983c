"""Calls of SLURM's commands, with few of this process's variables and a time limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from autoqec.system.process import child
from autoqec.system.scratch import scratch

_TIMEOUT_S = 60.0
_LOGIN_VARIABLES = ("USER", "LOGNAME", "SHELL")


def run_command(*argv: str) -> tuple[int, str]:
    """Run one of SLURM's commands, which sees no key; return exit status and output.

    A login process asks every few seconds, so that there is no supervisor, which takes 30 times the command's CPU time.
    """
    try:
        done = subprocess.run(
            argv,
            cwd="/",
            env=child.environment(_exported()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C in a terminal is for this process alone
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 1, _no_answer((error.output or b"").decode(errors="replace"))
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def run_sbatch(*flags: str, exported: Sequence[str] = ()) -> tuple[int, str]:
    """Run sbatch with the `exported` variables, and end it with this process, so that no job is queued unnoticed."""
    with scratch("slurm") as directory:
        output = directory / "output"
        limits = child.Limits(wallclock_s=_TIMEOUT_S)
        ended = child.run(["sbatch", *flags], cwd=directory, env=_exported(exported), limits=limits, stdout=output)
        text = output.read_text(encoding="utf-8", errors="replace")
        return (1, _no_answer(text)) if ended.limit_broken else (ended.returncode, text)


def write_environment(path: Path, exported: Sequence[str]) -> None:
    """Write the variables of this process that a job sees to a file for `sbatch --export-file`.

    With a list of names in `--export`, SLURM starts a login shell per job, which takes 0.1 s of CPU time and more, and
    whose profile may export anything.

    Args:
        path: The file.
        exported: Names, besides those that a login shell sets and where SLURM is configured.
    """
    names = (*exported, *_LOGIN_VARIABLES, "SLURM_CONF")
    lines = (f"{name}={os.environ[name]}\0" for name in names if name in os.environ)
    path.write_bytes(os.fsencode("".join(lines)))


def _no_answer(output: str) -> str:
    return f"no answer in {_TIMEOUT_S:.0f} s: {output}"


def _exported(names: Sequence[str] = ()) -> dict[str, str]:
    return {name: os.environ[name] for name in ("SLURM_CONF", *names) if name in os.environ}
