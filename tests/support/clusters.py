"""Clusters to try: a stand-in for SLURM's commands, and SLURM itself on one node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STANDIN = Path(__file__).with_name("standins") / "slurm"
COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "sacct", "scancel")
DAEMONS = ("munged", "slurmctld", "slurmd")
PATIENCE_S = 60


@dataclass(frozen=True)
class Cluster:
    """env: what its commands need. conf: of the stand-in; None: this is SLURM."""

    env: dict[str, str]
    conf: Path | None = None

    def change(self, **more: Any) -> None:
        assert self.conf is not None
        text = json.dumps({**json.loads(self.conf.read_text()), **more})
        self.conf.with_suffix(".new").write_text(text)
        self.conf.with_suffix(".new").rename(self.conf)

    def jobs(self) -> dict[str, str]:
        """Number -> state of every job that is still known."""
        said = self.ask("squeue", "--noheader", "--states=all", "--format=%i|%T").split()
        return dict(line.split("|") for line in said)  # type: ignore[misc]

    def ask(self, *argv: str) -> str:
        env = os.environ | self.env
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    def workers(self, number: str) -> list[int]:
        """Processes of a job that run submitit."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                known = (path / "environ").read_bytes().split(b"\0")
                words = (path / "cmdline").read_bytes().split(b"\0")
                # srun hands the command on
                own = b"submitit.core._submit" in words and b"--unbuffered" not in words
                if own and f"SLURM_JOB_ID={number}".encode() in known:
                    found.append(int(path.name))
        return found

    def kill_workers(self, number: str) -> None:
        """The job's process dies as of a fault of the node's."""
        for pid in self.workers(number):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def fake_slurm(place: Path, **conf: Any) -> Cluster:
    tools, state = place / "bin", place / "cluster"
    tools.mkdir(parents=True)
    state.mkdir()
    for name in COMMANDS:
        (tools / name).symlink_to(STANDIN)
    (state / "slurm.conf").write_text(json.dumps({"minute_s": 60.0, **conf}))
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_CONF": str(state / "slurm.conf")}
    return Cluster(env, state / "slurm.conf")


def slurm_unavailable_reason() -> str | None:
    """Why SLURM cannot be started here; None where it can."""
    missing = [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "SLURM's daemons cannot be started; install: run the tests as root"


@contextmanager
def slurm(place: Path) -> Iterator[Cluster]:
    """SLURM on this machine alone: its own ports, key and files; no accounting, no cgroups. Ended with the block."""
    place.chmod(0o755)
    for name in ("state", "spool"):
        (place / name).mkdir()
    (place / "munge.key").write_bytes(os.urandom(1024))
    (place / "munge.key").chmod(0o400)
    control, node = _free_ports()
    host = socket.gethostname().split(".")[0]
    (place / "slurm.conf").write_text(_conf(place, host, control, node), encoding="utf-8")
    (place / "cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")
    env = {"SLURM_CONF": str(place / "slurm.conf"), "PATH": _path()}
    daemons: list[subprocess.Popen[bytes]] = []
    cluster = Cluster(env)
    try:
        names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        files = [f"--{flag}={place / name}" for flag, name in names.items()]
        for argv in (
            ["munged", "--foreground", "--force", *files, f"--log-file={place / 'munged.log'}"],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D"],
        ):
            with (place / f"{argv[0]}.out").open("wb") as out:
                daemons.append(subprocess.Popen(argv, env=os.environ | env, stdout=out, stderr=out))
            if argv[0] == "munged":
                _until(lambda: (place / "munge.socket").exists(), place)
        _until(lambda: "idle" in _quietly(cluster, "sinfo", "--noheader", "--format=%T"), place)
        yield cluster
    finally:
        for number, state in (cluster.jobs() if len(daemons) == 3 else {}).items():
            if state in ("RUNNING", "PENDING", "COMPLETING"):
                _quietly(cluster, "scancel", "--signal=KILL", "--full", number)
                _quietly(cluster, "scancel", number)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _quietly(cluster: Cluster, *argv: str) -> str:
    try:
        return cluster.ask(*argv)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)


def _until(what: Any, place: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        logs = "".join(path.read_text(errors="replace") for path in sorted(place.glob("*.out")))
        assert time.monotonic() < deadline, f"SLURM does not start:\n{logs[-3000:]}"
        time.sleep(0.2)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports() -> list[int]:
    """Two that nobody listens on."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], other.getsockname()[1]]


def _conf(place: Path, host: str, control: int, node: int) -> str:
    cores = os.cpu_count() or 1
    return f"""ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
SlurmctldPort={control}
SlurmdPort={node}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
