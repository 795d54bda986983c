"""What this machine is, and the hashes of what runs on it. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import psutil

from autoqec.errors import AutoqecError
from autoqec.installation import PACKAGE_DIR
from autoqec.system.process import child

PACKAGES = (
    "autoqec",
    "torch",
    "stim",
    "pymatching",
    "sinter",
    "ldpc",
    "numpy",
    "scipy",
    "optuna",
    "pydantic",
    "anthropic",
)
# The packages whose code can change a figure or a verdict; everything else shows, proposes or stores.
RESULT_PACKAGES = (
    "contracts",
    "qec",
    "decoders",
    "runner",
    "verification",
    "extensions/recorded",
    "extensions/training_loops",
)
_PACKAGE = PACKAGE_DIR.resolve()
_EDITABLE_MODULES = _PACKAGE / "decoders" / "modules"


def snapshot(directory: Path | str = ".") -> dict[str, Any]:
    """Processor, memory, disk (of `directory`), Python, packages and GPU; sizes in 1e9 bytes. Never raises."""
    memory = psutil.virtual_memory()
    return {
        "cpu": {"model": cpu_model(), "cores": cpu_count(), "machine": platform.machine()},
        "memory": {"total_gb": round(memory.total / 1e9, 3), "available_gb": round(memory.available / 1e9, 3)},
        "disk": _disk(Path(directory)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": versions(),
        "gpu": gpu(),
    }


def versions() -> dict[str, str]:
    """Installed versions of the packages that figures depend on; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def requirements_fingerprint() -> str:
    """16 hex digits over name and version of every installed distribution, and of Python."""
    names = {f"{(dist.name or '').lower()}=={dist.version}" for dist in importlib.metadata.distributions()}
    lines = [f"python=={platform.python_version()}", *sorted(names)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def code_sha256() -> str:
    """SHA-256 over the trusted code that can change a result: of training, measurement or verification.

    Every .py and .c file of RESULT_PACKAGES except the editable modules, and which C extensions are built, since
    PyMatching in place of one may choose another of two equal minima, and torch rounds otherwise.
    """
    matcher, network = (
        "C" if any((_PACKAGE / f"{name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES) else "Python"
        for name in ("qec/_match", "decoders/_local")
    )
    files = _code_files([_PACKAGE / name for name in RESULT_PACKAGES], (".py", ".c"))
    return hashlib.sha256(f"{_sha256_of(files)}  matching in {matcher}, networks in {network}\n".encode()).hexdigest()


def package_sha256() -> str:
    """SHA-256 over all code of the package except the editable modules: what can change views, prompts and commands."""
    # In a checkout autoqec/cli is a link, and rglob follows none below its root.
    return _sha256_of(_code_files([_PACKAGE, _PACKAGE / "cli"], (".py", ".c", ".j2")))


def _code_files(roots: Iterable[Path], suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Return relative name -> path of the files with these suffixes; below the roots, links are not followed.

    Every round of a SLURM job asks for them, and `Path.rglob` takes ten times as long.
    """
    found, directories = dict[str, Path](), [str(root) for root in roots if root.is_dir()]
    left_out, parent = str(_EDITABLE_MODULES), f"{_PACKAGE.parent}/"
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__" and entry.path != left_out:
                        directories.append(entry.path)
                elif entry.name.endswith(suffixes):
                    found[entry.path.removeprefix(parent)] = Path(entry.path)
    return found


def tree_sha256(directory: Path | str) -> str:
    """SHA-256 over names and bytes of every regular file below `directory`; byte code and links are left out."""
    root = Path(directory)
    files = {}
    for where, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink() and path.suffix != ".pyc":
                files[path.relative_to(root).as_posix()] = path
    return _sha256_of(files)


def _sha256_of(files: dict[str, Path]) -> str:
    total = hashlib.sha256()
    for name in sorted(files):
        digest = hashlib.sha256(files[name].read_bytes()).hexdigest()
        total.update(f"{digest}  {name}\n".encode())
    return total.hexdigest()


def cpu_count() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _disk(directory: Path) -> dict[str, float]:
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return {}
    return {"total_gb": round(usage.total / 1e9, 3), "free_gb": round(usage.free / 1e9, 3)}


def visible_gpus(devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; no driver is asked."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(part.strip() for part in named.split(",") if part.strip() not in ("", "-1", "NoDevFiles"))
    numbers = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*"))
    return tuple(str(index) for index in range(sum(number.isdigit() for number in numbers)))


def gpu() -> dict[str, Any]:
    """First accelerator as `nvidia-smi` names it (memory in 1e9 bytes) and how many there are; {} on any failure."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory, "out")
            result = child.run(query, cwd=directory, limits=child.Limits(wallclock_s=20), stdout=out)
            lines = out.read_text().splitlines()
        if result.returncode != 0 or not lines:
            return {}
        name, mebibytes, driver = (part.strip() for part in lines[0].split(","))
        memory_gb = round(float(mebibytes) * 2**20 / 1e9, 3)
        return {"name": name, "memory_gb": memory_gb, "driver": driver, "count": len(lines)}
    except (AutoqecError, OSError, ValueError):
        return {}
