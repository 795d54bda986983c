"""Child processes: their environment, their resource limits, and that no descendant survives them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from autoqec.errors import RunInterruptedError, StorageError, UsageError
from autoqec.system.process import child, procfs
from autoqec.system.process.child import Limits, Result


def run(code: str, directory: Path, limits: Limits | None = None, **more: object) -> Result:
    argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]
    limits = limits or Limits(wallclock_s=60)
    return child.run(argv, cwd=directory, limits=limits, stdout=directory / "log", **more)  # type: ignore[arg-type]


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_for(condition: object, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        with open("daemon.tmp", "w") as out:
            out.write(str(os.getpid()))
        os.rename("daemon.tmp", "daemon")
        time.sleep(600)
    os._exit(0)
while not os.path.exists("daemon"):
    time.sleep(0.01)
"""


def daemon(directory: Path) -> int:
    return int((directory / "daemon").read_text())


# ---- exit status


def test_output_and_exit_status_are_returned(tmp_path: Path) -> None:
    result = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)", tmp_path)
    assert (result.returncode, result.limit_broken) == (7, None)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert result.cpu_s > 0 and result.rss_peak_gb > 0


def test_second_run_appends_to_the_log(tmp_path: Path) -> None:
    for word in ("one", "two"):
        run(f"print({word!r})", tmp_path)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_by_signal_is_a_negative_return_code(tmp_path: Path, number: int) -> None:
    assert run(f"import os; os.kill(os.getpid(), {int(number)})", tmp_path).returncode == -number


def test_program_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    result = child.run(["no-such-program"], cwd=tmp_path, limits=Limits(60), stdout=tmp_path / "log")
    assert result.returncode == 127 and "no-such-program" in (tmp_path / "log").read_text()
    with pytest.raises(UsageError):
        child.run(["true"], cwd=tmp_path / "nowhere", limits=Limits(60), stdout=tmp_path / "log")
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(StorageError):
        child.run(["true"], cwd=tmp_path, limits=Limits(60), stdout=tmp_path / "link")


# ---- limits


def test_wall_clock_limit_ends_the_child(tmp_path: Path) -> None:
    result = run("import time; time.sleep(600)", tmp_path, Limits(wallclock_s=0.5))
    assert result.returncode == -9 and result.limit_broken is not None and result.limit_broken.startswith("wall clock")
    assert "> 0.5 s" in result.limit_broken


def test_memory_limit_covers_the_process_tree(tmp_path: Path) -> None:
    code = """
    import os, time
    for _ in range(3):
        if os.fork() == 0:
            held = bytearray(b"x" * 80_000_000)
            time.sleep(600)
    time.sleep(600)
    """
    result = run(code, tmp_path, Limits(wallclock_s=60, memory_gb=0.2))
    assert (
        result.limit_broken is not None
        and result.limit_broken.startswith("memory")
        and "> 0.2 GB" in result.limit_broken
    )
    assert result.rss_peak_gb > 0.2


def test_memory_that_grew_between_two_samples(tmp_path: Path) -> None:
    """As where the kernel, out of memory, is faster than the next sample."""
    size = 2 * max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 100_000_000)
    code = f"import os; held = b'x' * {size}; os.kill(os.getpid(), 9)"
    result = run(code, tmp_path, Limits(wallclock_s=60, memory_gb=size / 2e9))
    assert result.limit_broken is not None and result.limit_broken.startswith("memory")
    assert not result.sigkilled
    assert run("import os; os.kill(os.getpid(), 9)", tmp_path, Limits(wallclock_s=60, memory_gb=0.05)).sigkilled


def test_process_limit_covers_the_process_tree(tmp_path: Path) -> None:
    code = "import os, time\nfor _ in range(6):\n    os.fork() or time.sleep(600)\ntime.sleep(600)"
    result = run(code, tmp_path, Limits(wallclock_s=60, processes=4))
    assert result.limit_broken is not None and result.limit_broken.endswith("> 4")


def test_fork_bomb_is_ended(tmp_path: Path) -> None:
    code = """
    import os, time
    open("pids", "a").write(f"{os.getpid()}\\n")
    while True:
        try:
            if os.fork() == 0:
                open("pids", "a").write(f"{os.getpid()}\\n")
        except OSError:
            pass
        time.sleep(0.05)
    """
    result = run(code, tmp_path, Limits(wallclock_s=60, processes=40))
    assert result.limit_broken is not None and result.limit_broken.startswith("processes")
    assert all(has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_disk_limit_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    code = """
    import os, time
    for n in range(10):
        with open(f"out/{n}", "wb") as out:
            out.write(os.urandom(900_000))
    time.sleep(600)
    """
    result = run(code, tmp_path, Limits(wallclock_s=60, disk_mb=4, disk_dir=tmp_path / "out"))
    assert (
        result.limit_broken is not None
        and result.limit_broken.startswith("disk")
        and result.limit_broken.endswith("> 4 MB")
    )


@pytest.mark.parametrize("held", ["open(name, 'rb+')", "mmap.mmap(os.open(name, os.O_RDONLY), 0, mmap.MAP_PRIVATE)"])
def test_removed_files_count_as_long_as_they_are_held(held: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    code = f"""
    import mmap, os, time
    kept = []
    def hold(name):
        with open(name, "wb") as out:
            out.write(os.urandom(900_000))
        kept.append({held})
        os.unlink(name)
    for n in range(10):
        hold(f"out/{{n}}")
    assert not os.listdir("out")
    time.sleep(600)
    """
    result = run(code, tmp_path, Limits(wallclock_s=60, disk_mb=4, disk_dir=tmp_path / "out"))
    assert result.limit == "disk" and str(result.limit_broken).endswith("> 4 MB")


def test_swapped_and_huge_pages_count_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    lines = ["VmSize: 900 kB", "VmRSS: 100 kB", "RssAnon: 40 kB", "RssFile: 50 kB", "RssShmem: 10 kB", "VmSwap: 5 kB"]
    (tmp_path / "7" / "status").write_text("\n".join([*lines, "HugetlbPages: 2 kB", ""]))
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    assert procfs.rss_bytes([7, 8]) == 107 * 1024 and procfs.anonymous_bytes([7, 8]) == 57 * 1024


def test_single_file_cannot_exceed_the_disk_limit(tmp_path: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('big', 'wb').write(bytes(3_000_000))"
    assert run(code, tmp_path, Limits(wallclock_s=60, disk_mb=1)).returncode == 1
    assert (tmp_path / "big").stat().st_size <= 1_000_000


def test_core_dumps_are_disabled_and_descriptors_limited(tmp_path: Path) -> None:
    code = "import resource as r; print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE))"
    run(code, tmp_path, Limits(wallclock_s=60, nofile=64))
    assert (tmp_path / "log").read_text().strip() == "(0, 0) (64, 64)"


# ---- no process survives


def test_daemon_ends_with_the_child_that_started_it(tmp_path: Path) -> None:
    assert run(DAEMON, tmp_path).returncode == 0
    assert has_ended(daemon(tmp_path))


def test_daemon_ends_when_a_limit_is_exceeded(tmp_path: Path) -> None:
    result = run(DAEMON + "\ntime.sleep(600)", tmp_path, Limits(wallclock_s=1))
    assert result.limit_broken is not None and has_ended(daemon(tmp_path))


def test_everything_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from autoqec.system.process import child
here = Path({str(tmp_path)!r})
argv = [sys.executable, "-I", "-S", "-c", {DAEMON + "time.sleep(600)"!r}]
child.run(argv, cwd=here, limits=child.Limits(600), stdout=here / "log")
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    assert wait_for((tmp_path / "daemon").exists)
    below = procfs.process_tree(parent.pid)[1:] + [daemon(tmp_path)]
    assert len(below) >= 3
    parent.kill()
    parent.wait()
    assert wait_for(lambda: all(has_ended(pid) for pid in below))


def test_exception_from_on_tick_ends_the_child(tmp_path: Path) -> None:
    def stop(seconds: float) -> None:
        if (tmp_path / "daemon").exists():
            raise RunInterruptedError("Ctrl-C")

    with pytest.raises(RunInterruptedError):
        run(DAEMON + "\ntime.sleep(600)", tmp_path, on_tick=stop)
    assert has_ended(daemon(tmp_path))


# ---- environment and descriptors


def test_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "GIT_DIR", "PYTHONPATH", "PYTHONSTARTUP", "WHATEVER"):
        monkeypatch.setenv(name, "leaked")
    run("import os\nfor name in sorted(os.environ): print(name, os.environ[name])", tmp_path, env={"MINE": "yes"})
    seen = dict(line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines())
    assert "leaked" not in seen.values()
    assert seen["MINE"] == "yes" and seen["OMP_NUM_THREADS"] == "1" and seen["PYTHONDONTWRITEBYTECODE"] == "1"
    assert seen["PATH"] == os.environ["PATH"]


def test_requested_environment_takes_precedence(tmp_path: Path) -> None:
    run("import os; print(os.environ['OMP_NUM_THREADS'])", tmp_path, env={"OMP_NUM_THREADS": "4"})
    assert (tmp_path / "log").read_text() == "4\n"


def test_child_inherits_no_descriptor(tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as secret:
        os.set_inheritable(secret.fileno(), True)
        run("import os; print(os.listdir('/proc/self/fd'))", tmp_path)
    assert len(eval((tmp_path / "log").read_text())) == 4  # 0, 1, 2 and the listing's own


# ---- pipes


def test_started_child_communicates_through_pipes(tmp_path: Path) -> None:
    with child.start(["cat"], cwd=tmp_path, limits=Limits(60), stderr=tmp_path / "err") as process:
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"hello\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.stdout.read() == b""
        result = process.wait(30)
    assert result is not None and result.returncode == 0


def test_pass_fds_reach_the_child_and_close_with_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    argv = [sys.executable, "-I", "-S", "-c", f"import os; os.write({writing}, b'hi')"]
    with child.start(argv, cwd=tmp_path, limits=Limits(60), stderr=tmp_path / "err", pass_fds=[writing]) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            assert stream.read() == b"hi"  # end of file: no other process holds the write end
        process.wait(30)


def test_limits_are_enforced_while_waiting_on_a_pipe(tmp_path: Path) -> None:
    with child.start(["sleep", "600"], cwd=tmp_path, limits=Limits(0.3), stderr=tmp_path / "err") as process:
        assert process.stdout.read() == b""
        result = process.wait(30)
    assert result is not None and result.limit_broken is not None and result.returncode == -9


def test_leaving_the_block_ends_the_child(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", "-c", DAEMON + "\nprint('up', flush=True)\ntime.sleep(600)"]
    with child.start(argv, cwd=tmp_path, limits=Limits(600), stderr=tmp_path / "err") as process:
        assert process.stdout.readline() == b"up\n"
    assert has_ended(process.pid) and has_ended(daemon(tmp_path))
    assert process.kill().returncode == -9
