"""`autoqec doctor`: check what AutoQEC needs on this machine."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from autoqec import locate, plugins
from autoqec.cli.common import Output, options
from autoqec.errors import AutoqecError
from autoqec.system import machine, sandbox
from autoqec.system.sandbox import bubblewrap

BACKEND_EFFECTS = {
    "bubblewrap": "tested: no access to other files, the network or other processes",
    "landlock": "tested, with seccomp: no access to other files or the network",
    "none": "rounds that change code cannot be verified; rounds that change only the config can",
}
FREE_GB = 2.0  # more than artifacts and worktrees of a dev run need


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: what was checked.
        state: error: autoqec cannot work; warning: it works with a restriction, which `found` describes.
        found: what was found.
        hint: how to fix it.
    """

    name: str
    state: Literal["ok", "warning", "error"]
    found: str
    hint: str | None = None


@click.command("doctor")
@options
def command(out: Output) -> None:
    """Check Python, libraries, git, sandbox, processor, GPU, disk and SLURM.

    Exit status 2: at least one error.
    """
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        hint = f"; hint: {finding.hint}" if finding.hint else ""
        out.say(f"{finding.state:8}  {finding.name:10} {finding.found}{hint}")
        out.emit(asdict(finding))
    if any(finding.state == "error" for finding in findings):
        raise click.exceptions.Exit(2)


def _python() -> Iterator[CheckResult]:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = sys.version_info >= (3, 11)
    yield CheckResult(
        "python", "ok" if supported else "error", version, None if supported else "install Python 3.11 or newer"
    )


def _libraries() -> Iterator[CheckResult]:
    for name in ("torch", "stim", "pymatching", "optuna"):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:
            yield CheckResult(name, "error", f"cannot be imported: {error}", "pip install --force-reinstall autoqec")
            continue
        yield CheckResult(name, "ok", str(getattr(module, "__version__", "present")))


def _matching() -> Iterator[CheckResult]:
    try:
        from autoqec.decoders import local_forward
        from autoqec.qec import weighted_mwpm
    except (ImportError, OSError):
        return  # a library is missing, which was reported above
    reinstall_hint = "pip install --force-reinstall --no-deps autoqec"
    if weighted_mwpm.compiled_matcher() is None:
        message = "per-shot weights in PyMatching only, many times slower: the package was built without a C compiler"
        yield CheckResult("matching", "warning", message, f"install a C compiler, then {reinstall_hint}")
    elif weighted_mwpm.is_outdated():
        yield CheckResult(
            "matching", "warning", "per-shot weights in C, built from an older weighted_mwpm.c", reinstall_hint
        )
    elif local_forward.compiled_network() is None or local_forward.is_outdated():
        message = "per-shot weights in C; networks of type `local` in torch, slower, or built from older files"
        yield CheckResult("matching", "warning", message, reinstall_hint)
    else:
        yield CheckResult("matching", "ok", "per-shot weights in C")


def _git() -> Iterator[CheckResult]:
    try:
        root = locate.workspace_root()
        yield CheckResult("git", "ok", f"in the repository {root}")
    except AutoqecError as error:
        yield CheckResult("git", "warning", error.message, error.hint)


def _sandbox() -> Iterator[CheckResult]:
    sandbox_backend = sandbox.probe()
    stronger = sandbox.SANDBOX_BACKENDS[: sandbox.SANDBOX_BACKENDS.index(sandbox_backend)]
    why = "".join(f"; no {name}: {sandbox.unavailable_reason(name)}" for name in stronger)
    message = f"{sandbox_backend}: {BACKEND_EFFECTS[sandbox_backend]}{why}"
    if sandbox_backend == "bubblewrap":
        yield CheckResult("sandbox", "ok", f"{message} ({bubblewrap.describe()})")
    else:
        if sandbox_backend == "landlock" and os.geteuid() == 0:
            message += "; root can read files of other users: run as another user"
        hint = sandbox.INSTALL if sandbox.chosen() == "auto" else f"unset {sandbox.CHOICE}"
        yield CheckResult("sandbox", "warning", message, hint)


def _machine() -> Iterator[CheckResult]:
    state = machine.snapshot(Path.cwd())
    yield CheckResult("processor", "ok", f"{state['cpu']['cores']} cores, {state['cpu']['model']}")
    gpu = state["gpu"]
    yield CheckResult("gpu", "ok", gpu["name"] if gpu else "none; training runs on the processor")
    free = state["disk"].get("free_gb")
    if free is None or free >= FREE_GB:
        yield CheckResult("disk", "ok", f"{free} GB free")
    else:
        yield CheckResult("disk", "error", f"{free} GB free, {FREE_GB} needed", "free disk space: autoqec gc")


def _extensions() -> Iterator[CheckResult]:
    failed = plugins.unusable()
    if not failed:
        yield CheckResult("extensions", "ok", "all can be imported")
    for extension in failed:
        yield CheckResult("extensions", "warning", extension.reason, "install or uninstall what it names")


def _executors() -> Iterator[CheckResult]:
    """Executors are optional: a machine without what they need is ok."""
    for name in plugins.names("autoqec.executors"):
        try:
            findings = list(plugins.load("autoqec.executors", name).health())
        except AutoqecError:
            continue  # reported with the extensions
        for found, hint in findings:
            yield CheckResult(name, "ok" if hint is None else "warning", found, hint)


CHECKS: tuple[Callable[[], Iterator[CheckResult]], ...] = (
    _python,
    _libraries,
    _matching,
    _git,
    _sandbox,
    _machine,
    _extensions,
    _executors,
)
