"""Calls of SLURM's commands, with few of this process's variables and a time limit."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from autoqec.system.process import child

# What jobs see of this process: no key, and not the mark of the run's owner, because a job outlives this process.
EXPORTED_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "AUTOQEC_SANDBOX")
# Temporary files of a job are on its node's own disk if the cluster offers one.
NODE_SCRATCH = 'export TMPDIR="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"'
_TIMEOUT_S = 60.0
_LOGIN_VARIABLES = ("USER", "LOGNAME", "SHELL")
# What a controller that is restarting or overrun lets a command say; a refusal of what was asked for reads otherwise.
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|zero bytes were transmitted|transport endpoint"
    r"|connection (refused|reset|timed out)|resource temporarily unavailable|temporarily unable|in standby mode"
    r"|no answer in \d+ s",
    re.IGNORECASE,
)


def run_command(*argv: str, exported: Iterable[str] = ()) -> tuple[int, str]:
    """Run one of SLURM's commands; return exit status and output.

    Args:
        argv: The command, which sees no key.
        exported: Names of variables that it sees all the same.
    """
    names = ("SLURM_CONF", *exported)
    try:
        done = subprocess.run(
            argv,
            cwd="/",
            env=child.environment({name: os.environ[name] for name in names if name in os.environ}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C in a terminal is for this process alone
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 1, f"no answer in {_TIMEOUT_S:.0f} s: {(error.output or b'').decode(errors='replace')}"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def is_transient(output: str) -> bool:
    """Return whether SLURM did not answer, so that what was asked for may have happened or not."""
    return _TRANSIENT.search(output) is not None


def error_summary(output: str) -> str:
    """Return SLURM's errors in one line."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line.strip()) for line in output.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))[:400] or "no message"


def write_environment(path: Path) -> None:
    """Write the variables that a job sees to a file for `sbatch --export-file`.

    With a list of names in `--export`, SLURM starts a login shell per job, whose profile may export anything.
    """
    names = (*EXPORTED_VARIABLES, *_LOGIN_VARIABLES, "SLURM_CONF")
    lines = (f"{name}={os.environ[name]}\0" for name in names if name in os.environ)
    path.write_bytes(os.fsencode("".join(lines)))


def has_only_this_machine(partition: str | None) -> bool:
    """Return whether SLURM has no other node than this machine, in the partition if one is named."""
    where = [] if partition is None else [f"--partition={partition}"]
    status, output = run_command("sinfo", "--noheader", "--Node", "--format=%n", *where)
    nodes = {name.partition(".")[0] for name in output.split()}
    return status == 0 and nodes == {socket.gethostname().partition(".")[0]}
