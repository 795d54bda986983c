"""Measure commands on a large recording: time of each step, memory of each process, and what a killed command repeats.

    nice -n 10 python -m benchmarks.large_recording --gigabytes 1 --directory /tmp/large

samples shots of the rotated surface code into DIRECTORY/data, then calls `autoqec add-env --recorded`, `run` and
`verify`, each on a terminal of its own. The first two are killed with SIGKILL in the middle of their steps and given
again. A run copies the training and validation shots, so the disk must hold 1.7 times the size. The figures are
printed, and written to DIRECTORY/figures.json.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import stim

from autoqec.cli.workspace import make_workspace
from autoqec.store import atomic
from benchmarks.parallel import ENV

BATCH = 1 << 16  # shots sampled at a time
SAMPLED_S = 1.0  # between two readings of the processes' memory
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]+")
READING = re.compile(
    r"(hashing \S+|checking block \d+|estimating the model|fitting the model|copying \w+ shots)[^%]*?(\d+)%"
)
ROUND = re.compile(r"([a-z][a-z ]+) · ([\d.]+[kM]?) of ([\d.]+[kM]?)")
FIGURES = "figures.json"


def write_shots(directory: Path, size: int, sampled: int, circuit: stim.Circuit, rounds: int) -> None:
    """Write a circuit, `recorded.yaml` and shots, one batch at a time.

    Args:
        directory: Where to.
        size: Bytes of detection events.
        sampled: Bytes after which the shots so far are written again.
        circuit: The circuit.
        rounds: Its rounds.
    """
    atomic.make_dir(directory)
    atomic.write_text(directory / "circuit.stim", f"{circuit}\n")
    block = "{detection_events: events.b8, observables: flips.b8, device: simulated}"
    atomic.write_text(directory / "recorded.yaml", f"model: circuit.stim\nrounds: {rounds}\nblocks:\n  - {block}\n")
    width = -(-circuit.num_detectors // 8)
    shots = size // width
    distinct = min(max(sampled // width, BATCH), shots)
    sampler = circuit.compile_detector_sampler(seed=1)
    paths = directory / "events.b8", directory / "flips.b8"
    with paths[0].open("w+b") as events, paths[1].open("w+b") as flips:
        for start in range(0, distinct, BATCH):
            drawn = sampler.sample(min(BATCH, distinct - start), separate_observables=True, bit_packed=True)
            for stream, part in zip((events, flips), drawn, strict=True):
                stream.write(part.tobytes())
        for start in range(distinct, shots, BATCH):
            for stream, bytes_per_shot in ((events, width), (flips, 1)):
                stream.seek((start - distinct) * bytes_per_shot)
                content = stream.read(min(BATCH, shots - start) * bytes_per_shot)
                stream.seek(0, os.SEEK_END)
                stream.write(content)


@dataclass
class Process:
    """Memory of a process at most, in MB: all that was resident, and without mapped files."""

    resident: float = 0.0
    anonymous: float = 0.0


@dataclass
class Command:
    """What was measured of one command.

    Attributes:
        text: The command.
        killed_at: Step in which it was killed, and how much of the step was done; None if it ended by itself.
        status: Its exit status.
        elapsed_s: Its duration.
        cpu_s: CPU time of its process and of those it waited for.
        steps: From the first progress of each step to that of the next one: seconds, and CPU time of all processes.
        silence_s: Longest time without a change of the progress shown, with the step before it.
        processes: Memory by name of the process.
    """

    text: str
    killed_at: tuple[str, str] | None = None
    status: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    steps: dict[str, tuple[float, float]] = field(default_factory=dict)
    silence_s: tuple[float, str] = (0.0, "")
    processes: dict[str, Process] = field(default_factory=dict)

    def line(self) -> str:
        """Return the figures in a few lines."""
        end = f"killed at {' '.join(self.killed_at)}" if self.killed_at else f"status {self.status}"
        lines = [f"{self.text}: {end}, {self.elapsed_s:.0f} s, {self.cpu_s:.0f} s of CPU"]
        lines += [f"  {name}: {elapsed:.1f} s, {cpu:.1f} s of CPU" for name, (elapsed, cpu) in self.steps.items()]
        lines.append(f"  longest time without progress: {self.silence_s[0]:.1f} s, after {self.silence_s[1]}")
        lines += [
            f"  memory of {name}: {memory.resident:.0f} MB, without mapped files {memory.anonymous:.0f} MB"
            for name, memory in self.processes.items()
        ]
        return "\n".join(lines)


class Watch:
    """Runs one command on a terminal of its own and measures it."""

    def __init__(self, arguments: list[str], directory: Path, kill_at: tuple[str, float] | None = None) -> None:
        """Prepare a command.

        Args:
            arguments: Arguments of `autoqec`.
            directory: Its working directory.
            kill_at: Start of a step's name, and the share of the step at which the command gets SIGKILL.
        """
        self.command = Command(" ".join(["autoqec", *arguments]))
        self._arguments, self._directory, self._kill_at = arguments, directory, kill_at
        self._text, self._shown, self._step = "", ("", ""), ("start", 0.0, 0.0)
        self._changed = self._sampled = 0.0
        self._pid = 0

    def run(self) -> Command:
        """Run the command to its end, or until it is killed."""
        screen, terminal = os.openpty()
        began = self._changed = time.monotonic()
        self._step = ("start", began, 0.0)
        process = subprocess.Popen(
            [sys.executable, "-m", "autoqec.cli", *self._arguments],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
        )
        os.close(terminal)
        self._pid = process.pid
        with (self._directory / "terminal.log").open("ab") as log:
            while not _has_ended(process.pid):
                if select.select([screen], [], [], SAMPLED_S)[0]:
                    content = _read(screen)
                    log.write(content)
                    self._read_progress(content.decode(errors="replace"))
                self._read_memory()
        os.close(screen)
        self._begin("end")
        _, status, usage = os.wait4(process.pid, 0)
        self.command.status = process.returncode = os.waitstatus_to_exitcode(status)
        self.command.elapsed_s = time.monotonic() - began
        self.command.cpu_s = usage.ru_utime + usage.ru_stime
        return self.command

    def _read_progress(self, content: str) -> None:
        text = ESCAPES.sub(" ", self._text + content)
        found = sorted([*READING.finditer(text), *ROUND.finditer(text)], key=lambda match: match.start())
        self._text = text[found[-1].end() :][-500:] if found else text[-500:]
        for match in found:
            step, *amount = match.groups()
            step, shown = step.strip(), " of ".join(amount)
            if (step, shown) != self._shown:
                self._shown = (step, shown)
                self._begin(step)
                self._kill(step, amount)

    def _begin(self, step: str) -> None:
        """Note that the progress shown has changed, and that of which step it is."""
        now = time.monotonic()
        self.command.silence_s = max(self.command.silence_s, (now - self._changed, self._step[0]))
        self._changed = now
        if step != self._step[0]:
            name, began, cpu_began = self._step
            cpu = sum(_cpu_s(process) for process in _tree(self._pid))
            elapsed_s, cpu_s = self.command.steps.get(name, (0.0, 0.0))
            self.command.steps[name] = (elapsed_s + now - began, cpu_s + cpu - cpu_began)
            self._step = (step, now, cpu)

    def _kill(self, step: str, amount: list[str]) -> None:
        if self._kill_at is None or not step.startswith(self._kill_at[0]) or self.command.killed_at:
            return
        numbers = [float(part.replace("k", "e3").replace("M", "e6")) for part in amount]
        if numbers[0] / (100 if len(numbers) == 1 else numbers[1]) >= self._kill_at[1]:
            self.command.killed_at = (step, " of ".join(amount))
            os.kill(self._pid, signal.SIGKILL)

    def _read_memory(self) -> None:
        if time.monotonic() - self._sampled < SAMPLED_S:
            return
        self._sampled = time.monotonic()
        for process in _tree(self._pid):
            name, memory = _name(process), _status(process)
            if "VmHWM" not in memory:  # it has ended
                continue
            known = self.command.processes.setdefault(name, Process())
            known.resident = max(known.resident, memory.get("VmHWM", 0.0))
            anonymous = memory.get("RssAnon", 0.0) + memory.get("RssShmem", 0.0)
            known.anonymous = max(known.anonymous, anonymous)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of those it waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 1 << 16)
    except OSError:  # every process that wrote to the terminal has ended
        time.sleep(SAMPLED_S / 10)
        return b""


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {int(path.name): int(_status(int(path.name)).get("PPid", 0)) for path in Path("/proc").glob("[0-9]*")}
    tree = [pid]
    for process in tree:  # grows meanwhile
        tree += [child for child, parent in parents.items() if parent == process]
    return tree


def _status(pid: int) -> dict[str, float]:
    """Return numbers of /proc/PID/status, memory in MB; empty for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = (line.replace(":", "").split() for line in lines)
    return {
        parts[0]: float(parts[1]) * (1.024e-3 if len(parts) == 3 else 1)
        for parts in fields
        if len(parts) in (2, 3) and parts[1].isdecimal()
    }


def _name(pid: int) -> str:
    """Return the module that a process runs, or the name of its program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return Path(words[0]).name


def measure(directory: Path, profile: str, candidates: int) -> list[Command]:
    """Give the commands, each killed and given again; return what was measured."""
    workspace = directory / "workspace"
    make_workspace(workspace, ENV)
    os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
    add = ["add-env", "device", "--recorded", str(directory / "data"), "--candidates", str(candidates)]
    start = ["run", "device.yaml", "--profile", profile, "--rounds", "1"]
    measured = []

    def give(arguments: list[str], kill_at: tuple[str, float] | None = None) -> None:
        measured.append(Watch(arguments, workspace, kill_at).run())
        print(measured[-1].line(), flush=True)

    give(add, ("checking", 0.5))
    give(add, ("estimating", 0.5))
    give(add)
    give(start, ("checking", 0.5))
    give(start, ("training", 0.5))
    run = max((workspace / "runs").iterdir())
    give(["run", "--resume", run.name, "--rounds", "1"])
    give(["verify", str(max(run.glob("round_*/metrics.json"), key=lambda path: path.stat().st_mtime_ns).parent)])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True, help="a new directory")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the detection events")
    parser.add_argument("--sampled", type=float, default=1.0, help="gigabytes that are sampled; the rest repeats them")
    parser.add_argument("--distance", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--p", type=float, default=0.003)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--candidates", type=int, default=100, help="parts of the sealed shots; one is decoded")
    parser.add_argument("--keep", action="store_true", help="do not delete the shots and the run at the end")
    options = parser.parse_args()
    data, size = options.directory / "data", int(options.gigabytes * 1e9)
    circuit = stim.Circuit.generated(
        "surface_code:rotated_memory_z",
        distance=options.distance,
        rounds=options.rounds,
        after_clifford_depolarization=options.p,
        before_measure_flip_probability=options.p,
        after_reset_flip_probability=options.p,
        before_round_data_depolarization=options.p,
    )
    atomic.make_dir(options.directory)
    began = time.monotonic()
    write_shots(data, size, int(options.sampled * 1e9), circuit, options.rounds)
    written = {path.name: path.stat().st_size for path in sorted(data.iterdir())}
    print(f"wrote {written} in {time.monotonic() - began:.0f} s, {time.process_time():.0f} s of CPU", flush=True)
    measured = measure(options.directory, options.profile, options.candidates)
    figures = {"bytes": written, "commands": [asdict(command) for command in measured]}
    atomic.write_json(options.directory / FIGURES, figures)
    if not options.keep:
        for path in (data, options.directory / "workspace", options.directory / "cache"):
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
