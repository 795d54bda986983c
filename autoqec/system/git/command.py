"""Starts git in a prepared environment: single commands directly, long-lived ones through GitPython."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.errors import UsageError
from autoqec.system.process.signals import block_signals

if TYPE_CHECKING:
    from git.cmd import Git

_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.fsync": "all",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "merge.directoryRenames": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
    "worktree.useRelativePaths": "false",
}
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "AutoQEC"), ("EMAIL", "autoqec@localhost"))
}
ENVIRONMENT = {
    **IDENTITY,
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    # An empty list: no transport at all, whatever the repository's own configuration allows.
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_EDITOR": "true",
}
_INHERITED = ("PATH", "TMPDIR", "LD_PRELOAD")
_OPTIONS = ("--no-pager", *(item for key, value in _CONFIG.items() for item in ("-c", f"{key}={value}")))


def execute(
    cwd: Path, arguments: Sequence[str], *, stdin: bytes = b"", env: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> tuple[int, bytes, str]:
    """Run one git; return its exit status, stdout and stderr. Its environment is `env` and `_INHERITED` alone.

    Raises:
        UsageError: git is not installed or cannot be started.
    """
    # These signals are for this process, which handles them once git has finished.
    with ExitStack() as files, block_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        errors = files.enter_context(tempfile.TemporaryFile())
        source = files.enter_context(tempfile.TemporaryFile()) if stdin else None
        if source is not None:
            source.write(stdin)
            source.seek(0)
        program = _program()
        try:
            process = subprocess.Popen(
                [program, *_OPTIONS, *arguments],
                env=_inherited() | dict(env),
                cwd=cwd if os.access(cwd, os.X_OK) else None,
                stdin=source or subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        except OSError as error:
            raise _cannot_start(program) from error
        with process:
            assert process.stdout is not None
            out = process.stdout.read()
        errors.seek(0)
        return process.returncode, out, errors.read().decode("utf-8", "surrogateescape")


def start(
    cwd: Path, arguments: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> Git.AutoInterrupt:
    """Start one git that answers requests on its stdin until it is closed; its environment is that of `execute`.

    Raises:
        UsageError: git is not installed or cannot be started.
    """
    program = _program()
    try:
        from git.cmd import Git
    except ImportError as error:  # GitPython runs git when it is imported
        raise _cannot_start(program) from error
    assignments = [f"{name}={value}" for name, value in {**_inherited(), **env}.items()]
    with block_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        try:
            return Git(str(cwd)).execute(
                ["env", "-i", *assignments, program, *_OPTIONS, *arguments],  # GitPython passes on the environment
                istream=subprocess.PIPE,
                as_process=True,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        except OSError as error:
            raise _cannot_start(program) from error


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _program() -> str:
    """Return the absolute path of git. Raises UsageError if it is not installed."""
    program = _find_program(os.environ.get("PATH"))
    if program is None:
        raise UsageError("git is not installed", hint="install git 2.38 or newer")
    return program


@lru_cache(maxsize=4)
def _find_program(path: str | None) -> str | None:
    program = shutil.which("git", path=path)
    return None if program is None else os.path.abspath(program)


def _cannot_start(program: str) -> UsageError:
    hint = "git version; ulimit -n and -u show the limits on open files and processes"
    return UsageError("git cannot be started", location=program, hint=hint)
