"""`autoqec doctor`: what autoqec needs here, what there is, and how to mend what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from autoqec.cli.common import Output, options
from autoqec.errors import AutoqecError

BACKEND_EFFECTS = {
    "bubblewrap": "started here just now, it saw no file but its own, no network, no other process",
    "landlock": "started here just now with seccomp, it saw no file but its own and no network",
    "none": "rounds that change code can't be verified; rounds that change the config alone can",
}
FREE_GB = 2.0  # a dev run's artifacts and worktrees, with room to spare


@dataclass(frozen=True)
class Finding:
    """`bad` keeps autoqec from working; `weak` takes something away, and `found` says what."""

    name: str
    state: Literal["good", "weak", "bad"]
    found: str
    hint: str | None = None


@click.command("doctor")
@options
def command(out: Output) -> None:
    """Check Python, libraries, git, sandbox, memory, disk and SLURM; exit 2 where something must be mended first."""
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        hint = f"; hint: {finding.hint}" if finding.hint else ""
        out.say(f"{finding.state:4}  {finding.name:10} {finding.found}{hint}")
        out.emit(asdict(finding))
    if any(finding.state == "bad" for finding in findings):
        raise click.exceptions.Exit(2)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = sys.version_info >= (3, 11)
    yield Finding(
        "python", "good" if supported else "bad", version, None if supported else "install Python 3.11 or newer"
    )


def _libraries() -> Iterator[Finding]:
    import importlib

    for name in ("torch", "stim", "pymatching", "optuna"):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:
            yield Finding(name, "bad", f"cannot be imported: {error}", "pip install --force-reinstall autoqec")
            continue
        yield Finding(name, "good", str(getattr(module, "__version__", "present")))


def _matching() -> Iterator[Finding]:
    try:
        from autoqec.qec import weighted_mwpm
    except (ImportError, OSError):
        return  # a library is missing, which stands above
    reinstall_hint = "pip install --force-reinstall --no-deps autoqec"
    if weighted_mwpm.compiled_matcher() is None:
        message = "per-shot weights in PyMatching alone, many times slower: the package was built without a C compiler"
        yield Finding("matching", "weak", message, f"install a C compiler, then {reinstall_hint}")
    elif weighted_mwpm.is_outdated():
        yield Finding("matching", "weak", "per-shot weights in C, built from an older weighted_mwpm.c", reinstall_hint)
    else:
        yield Finding("matching", "good", "per-shot weights in C")


def _git() -> Iterator[Finding]:
    from autoqec import locate

    try:
        root = locate.workspace_root()
        yield Finding("git", "good", f"in the repository {root}")
    except AutoqecError as error:
        yield Finding("git", "weak", error.message, error.hint)


def _sandbox() -> Iterator[Finding]:
    from autoqec.system import sandbox
    from autoqec.system.sandbox import bubblewrap

    sandbox_backend = sandbox.probe()
    stronger = sandbox.SANDBOX_BACKENDS[: sandbox.SANDBOX_BACKENDS.index(sandbox_backend)]
    why = "".join(f"; no {name}: {sandbox.unavailable_reason(name)}" for name in stronger)
    message = f"{sandbox_backend}: {BACKEND_EFFECTS[sandbox_backend]}{why}"
    if sandbox_backend == "bubblewrap":
        yield Finding("sandbox", "good", f"{message} ({bubblewrap.describe()})")
    else:
        if sandbox_backend == "landlock" and os.geteuid() == 0:
            message += "; as root: files of root are its own, so run as another user"
        hint = sandbox.INSTALL if sandbox.chosen() == "auto" else f"unset {sandbox.CHOICE}"
        yield Finding("sandbox", "weak", message, hint)


def _machine() -> Iterator[Finding]:
    from autoqec.system import machine

    state = machine.snapshot(Path.cwd())
    yield Finding("processor", "good", f"{state['cpu']['cores']} cores, {state['cpu']['model']}")
    gpu = state["gpu"]
    yield Finding("gpu", "good", gpu["name"] if gpu else "none; the processor trains")
    free = state["disk"].get("free_gb")
    if free is None or free >= FREE_GB:
        yield Finding("disk", "good", f"{free} GB free here")
    else:
        yield Finding("disk", "bad", f"{free} GB free here, {FREE_GB} wanted", "df -h . ; autoqec show lists old runs")


def _slurm() -> Iterator[Finding]:
    """Nothing is missing where there is no cluster."""
    from autoqec.system import slurm

    if shutil.which("sbatch") is None:
        yield Finding("slurm", "good", "none here; rounds are measured on this machine")
        return
    try:
        slurm.check({})
    except AutoqecError as error:
        yield Finding("slurm", "weak", f"--executor slurm cannot be used: {error.message}", error.hint)
    else:
        yield Finding("slurm", "good", "its controller answers and would take jobs: --executor slurm")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python, _libraries, _matching, _git, _sandbox, _machine, _slurm
)  # fmt: skip
