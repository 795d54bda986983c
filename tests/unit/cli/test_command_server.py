"""Commands of tests share their imports: a fork behaves like a process that was started for it."""

from __future__ import annotations

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from autoqec.orchestrator.failpoint import FAILPOINT_VARIABLE
from tests.conftest import Workspace
from tests.support.command_server import CommandServer


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("show",), 0),
        (("run", "env.yaml", "--profile", "smoke", "--dry-run", "--json"), 0),
        (("show", "20200101-000000", "--json"), 2),
        (("run", "--rounds", "none"), 2),
        (("--help",), 0),
    ],
)
def test_a_fork_behaves_like_a_new_process(workspace: Workspace, argv: tuple[str, ...], status: int) -> None:
    shared, fresh = (workspace.autoqec(*argv, fresh=fresh) for fresh in (False, True))
    assert shared == fresh and fresh.code == status and fresh.out + fresh.err


def test_killed_command_has_the_status_of_its_signal(workspace: Workspace) -> None:
    options = ("--profile", "smoke", "--rounds", "1")
    killed = workspace.autoqec("run", "env.yaml", *options, **{FAILPOINT_VARIABLE: "coded"})
    assert killed.code == -signal.SIGKILL and (workspace.root / "runs").is_dir()


def test_commands_without_shared_imports(workspace: Workspace) -> None:
    """Variables that change what is imported, and commands beside another one."""
    server = CommandServer(workspace.env)
    assert server.accepts(workspace.env | {"HOME": "/elsewhere", "PATH": "/bin"})
    assert not server.accepts(workspace.env | {"PYTHONPATH": "/elsewhere"})
    with ThreadPoolExecutor(3) as threads:
        shown = list(threads.map(lambda _: workspace.autoqec("show"), range(3)))
    assert shown[0].code == 0 and shown == shown[:1] * 3


def test_command_is_killed_at_its_time_limit(workspace: Workspace) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        workspace.autoqec("run", "env.yaml", "--profile", "smoke", "--rounds", "1", timeout=0.01)
    assert workspace.autoqec("show").code == 0
