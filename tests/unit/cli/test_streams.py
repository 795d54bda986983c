"""Lost output, signals and errors of the operating system end without a traceback and lose no work."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from autoqec.cli.common import Output, options, run_cli
from autoqec.cli.machine_errors import machine_error
from autoqec.errors import StorageError, UsageError
from tests.support.shown import check_error

WORK = """
import sys
import click
from autoqec.cli.common import options, run_cli

@click.group()
def group(): ...

@group.command("work")
@options
def work(out):
    for number in range(20_000):
        out.say(f"line {number}")
        out.emit({"number": number})
    open(sys.argv[1], "w").write("done")

sys.exit(run_cli(group, ["work", "--json"]))
"""


def test_closed_pipe_does_not_stop_the_command(tmp_path: Path) -> None:
    done = tmp_path / "done"
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(done)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() == 0 and done.exists()
    assert "Traceback" not in err and "Error" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full; it is part of Linux")
def test_full_output_disk_exits_74_after_the_work(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", WORK, str(done)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 74 and done.exists()
    check_error("\n".join(ended.stderr.splitlines()[-2:]), "standard output", "No space left", hint=True)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("module", ["click", "autoqec.cli.common", "autoqec.cli.commands.envs"])
def test_ctrl_c_during_imports_exits_130(module: str) -> None:
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of a shell
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["autoqec", "envs"]
from autoqec.cli.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 130, ended
    assert check_error(ended.stderr) == ("interrupted", None)


def failing(error: BaseException) -> click.Group:
    @click.group()
    def group() -> None: ...

    @group.command("end")
    @options
    def end(out: Output) -> None:
        raise error

    return group


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, 74), (errno.EROFS, 74), (errno.EACCES, 2), (errno.EMFILE, 2), (errno.ENAMETOOLONG, 2)],
)
def test_os_errors_have_exit_codes(number: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(number, os.strerror(number), "x" * 5_000)
    assert run_cli(failing(error), ["end"]) == code
    message, _ = check_error(capsys.readouterr().err, hint=True)
    assert len(message) < 300


def test_memory_errors_are_translated_other_exceptions_are_not() -> None:
    for error in (MemoryError(), ImportError("x.so: failed to map segment from shared object")):
        found = machine_error(error)
        assert isinstance(found, UsageError) and found.code == "memory"
    assert isinstance(machine_error(OSError(errno.EIO, "x")), StorageError)
    assert machine_error(ValueError("x")) is None and machine_error(OSError(errno.ENOENT, "x")) is None
