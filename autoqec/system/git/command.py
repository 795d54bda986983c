"""Starts git through GitPython, in one environment and with one set of options for every call.

Only `git.Git.execute` of GitPython is used: `git.Repo`, its references and `IndexFile` read and write files of the
repository themselves, which fails with reftable and ignores the permissions of a shared repository.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from autoqec.errors import UsageError
from autoqec.system.process.signals import block_signals

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
    program = shutil.which("git")
    if program is None:
        raise UsageError("git is not installed", hint="install git 2.38 or newer")
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    assignments = [f"{name}={value}" for name, value in {**inherited, **env}.items()]
    # GitPython passes on this process's environment, of which `env -i` leaves nothing.
    command = ["env", "-i", *assignments, os.path.abspath(program), *_OPTIONS, *arguments]
    # These signals are for this process, which handles them once git has finished.
    with ExitStack() as files, block_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        source = files.enter_context(tempfile.TemporaryFile()) if stdin else None
        if source is not None:
            source.write(stdin)
            source.seek(0)
        try:
            from git.cmd import Git  # it starts git when it is imported

            status, out, err = Git(str(cwd)).execute(
                command,
                istream=source,
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        except (OSError, ImportError) as error:
            hint = "git version; ulimit -n and -u show the limits on open files and processes"
            raise UsageError("git cannot be started", location=program, hint=hint) from error
    return status, out, err
