"""Clusters for tests: fake SLURM commands, and SLURM itself on one node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STANDIN = Path(__file__).with_name("standins") / "slurm"
COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "sacct", "scancel", "sinfo")
DAEMONS = ("munged", "slurmctld", "slurmd")
PATIENCE_S = 60
KEY = "sk-a-key-that-no-job-may-see"  # in the environment of the process that submits


@dataclass(frozen=True)
class Cluster:
    """A cluster. env: variables that its commands need. conf: settings of the fake; None for real SLURM."""

    env: dict[str, str]
    conf: Path | None = None

    def change(self, **more: Any) -> None:
        assert self.conf is not None
        text = json.dumps({**json.loads(self.conf.read_text()), **more})
        self.conf.with_suffix(".new").write_text(text)
        self.conf.with_suffix(".new").rename(self.conf)

    def jobs(self) -> dict[str, str]:
        """Return number -> state of every known job."""
        output = self.ask("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T").split()
        return dict(line.split("|") for line in output)  # type: ignore[misc]

    def ask(self, *argv: str) -> str:
        env = os.environ | self.env
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    def workers(self, number: str) -> list[int]:
        """Return processes of a job that run submitit; jobs of other clusters on this machine have the same numbers."""
        found, conf = [], f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                known = (path / "environ").read_bytes().split(b"\0")
                arguments = (path / "cmdline").read_bytes().split(b"\0")
                # srun passes the command on
                is_worker = b"submitit.core._submit" in arguments and b"--unbuffered" not in arguments
                job, _, index = number.partition("_")
                wanted = {f"SLURM_ARRAY_JOB_ID={job}".encode(), f"SLURM_ARRAY_TASK_ID={index}".encode()}
                wanted = wanted if index else {f"SLURM_JOB_ID={number}".encode()}
                if is_worker and wanted | {conf} <= set(known):
                    found.append(int(path.name))
        return found

    def await_state(self, number: str, *states: str) -> None:
        """Wait until a job is in one of these states."""
        deadline = time.monotonic() + PATIENCE_S
        while self.jobs().get(number) not in states:
            assert time.monotonic() < deadline, self.jobs()
            time.sleep(0.1)

    def lose(self, number: str, state: str) -> None:
        """Kill a job of the fake as its node or a preemption would; with the state PENDING it is requeued."""
        subprocess.run([sys.executable, STANDIN, "lose", number, state], env=os.environ | self.env, check=True)

    def kill_workers(self, number: str) -> None:
        """Kill the process of the job, as a failing node would."""
        for pid in self.workers(number):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def fake_slurm(directory: Path, **conf: Any) -> Cluster:
    tools, state = directory / "bin", directory / "cluster"
    tools.mkdir(parents=True)
    state.mkdir()
    for name in COMMANDS:
        (tools / name).symlink_to(STANDIN)
    (state / "slurm.conf").write_text(json.dumps({"minute_s": 60.0, **conf}))
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_CONF": str(state / "slurm.conf")}
    return Cluster(env, state / "slurm.conf")


def slurm_unavailable_reason() -> str | None:
    """Return why SLURM cannot be started on this machine, or None."""
    missing = [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "SLURM's daemons cannot be started; install: run the tests as root"


def cancel_waiting(cluster: Cluster) -> None:
    """Cancel the jobs of the fake that wait, or their processes would wait for ever."""
    cluster.change(down=False, forgets=False)
    for number, state in cluster.jobs().items():
        if state == "PENDING":
            cluster.ask("scancel", number)


@contextmanager
def slurm(directory: Path, *, cores: int = 0, memory_mb: int = 4000) -> Iterator[Cluster]:
    """Run SLURM on this machine with separate ports, key and files, without accounting or cgroups.

    cores, memory_mb: what SLURM believes of the machine; 0: its cores, at least as many as a detached run needs.
    """
    cores = cores or max(4, os.cpu_count() or 1)  # one for the run, one for a round, two for a verification
    directory.chmod(0o755)
    for name in ("state", "spool"):
        (directory / name).mkdir()
    (directory / "munge.key").write_bytes(os.urandom(1024))
    (directory / "munge.key").chmod(0o400)
    control, node = _free_ports()
    host = socket.gethostname().split(".")[0]
    (directory / "slurm.conf").write_text(_conf(directory, host, (control, node), cores, memory_mb), encoding="utf-8")
    (directory / "cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")
    env = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": _path()}
    daemons: list[subprocess.Popen[bytes]] = []
    cluster = Cluster(env)
    try:
        names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        files = [f"--{flag}={directory / name}" for flag, name in names.items()]
        for argv in (
            ["munged", "--foreground", "--force", *files, f"--log-file={directory / 'munged.log'}"],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D"],
        ):
            with (directory / f"{argv[0]}.out").open("wb") as out:
                daemons.append(subprocess.Popen(argv, env=os.environ | env, stdout=out, stderr=out))
            if argv[0] == "munged":
                _until(lambda: (directory / "munge.socket").exists(), directory)
        _until(lambda: "idle" in _quietly(cluster, "sinfo", "--noheader", "--format=%T"), directory)
        yield cluster
    finally:
        if len(daemons) == 3:
            _cancel_jobs(cluster)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _cancel_jobs(cluster: Cluster) -> None:
    """Cancel all jobs and wait for their end: a process of SLURM that cannot report it would never end."""
    deadline, cancelled = time.monotonic() + PATIENCE_S, set[str]()
    while active := {n for n, state in cluster.jobs().items() if state in ("RUNNING", "PENDING", "COMPLETING")}:
        for number in active - cancelled:
            _quietly(cluster, "scancel", "--signal=KILL", "--full", number)
            _quietly(cluster, "scancel", number)
        cancelled |= active
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)


def _quietly(cluster: Cluster, *argv: str) -> str:
    try:
        return cluster.ask(*argv)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)


def _until(condition: Any, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        logs = "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.out")))
        assert time.monotonic() < deadline, f"SLURM does not start:\n{logs[-3000:]}"
        time.sleep(0.2)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports() -> list[int]:
    """Return two unused ports."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return [first.getsockname()[1], second.getsockname()[1]]


def _conf(directory: Path, host: str, ports: tuple[int, int], cores: int, memory_mb: int) -> str:
    control, node = ports
    return f"""ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
SlurmctldPort={control}
SlurmdPort={node}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory_mb} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
