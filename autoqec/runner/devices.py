"""Devices and CPUs that a training uses, and the check that they and its loop are available."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autoqec import plugins
from autoqec.contracts.dsl import TrainingConfig
from autoqec.errors import UsageError
from autoqec.runner.spec import DEVICE_LENGTH, one_line

CORE_LOOPS = ("minibatch", "minibatch_eval")
POLICY_GRADIENT = "policy_gradient"  # name of the fine-tuning phase among the entry points of loops


def resolve_device(requested: str) -> str:
    """Return the torch device for a `training.device` value.

    Args:
        requested: auto, cpu, cuda or cuda:<index>. auto is the first CUDA GPU if torch finds one, else cpu.

    Returns:
        `cpu` or `cuda:<index>`.

    Raises:
        UsageError: torch does not find that GPU.
    """
    import torch

    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return "cpu"
    return _cuda_device(_first_index(requested), "training.device", "set `training.device: cpu`")


def resolve_rank_device(training: TrainingConfig, rank: int) -> str:
    """Return the torch device of one of several ranks that optimize.

    Ranks of gloo are on the CPU; rank r of nccl is on GPU r, counted from the index in `training.device`.

    Raises:
        UsageError: torch does not find that GPU.
    """
    assert training.sync is not None
    if training.sync.backend == "gloo":
        return "cpu"
    index = _first_index(training.device) + rank
    return _cuda_device(
        index,
        "training.sync.backend",
        f"set `training.sync.backend: gloo`, or lower `training.sync.ranks` (nccl needs one GPU per rank, rank {rank} "
        f"needs GPU {index})",
    )


def require_available(training: TrainingConfig) -> None:
    """Check that this machine has the loop and the GPUs that a config asks for.

    torch is imported only if it asks for a GPU.

    Raises:
        UsageError: One is missing.
    """
    installed = (*CORE_LOOPS, *plugins.names("autoqec.training_loops"))
    needed = {"training.loop": training.loop}
    if training.policy_gradient is not None:
        needed["training.policy_gradient"] = POLICY_GRADIENT
    for location, name in needed.items():
        if name not in installed:
            hint = f"use one of {', '.join(installed)}, or install an extension that registers it"
            raise UsageError(f"{name!r} is not installed", location=location, hint=hint)
    if training.sync is not None and training.sync.backend == "nccl":
        resolve_rank_device(training, training.sync.ranks - 1)
    elif training.device.startswith("cuda"):
        resolve_device(training.device)


def may_use_gpu(training: TrainingConfig) -> bool:
    """Return whether a round needs access to the GPUs of this machine, found without importing torch."""
    wanted = training.device != "cpu" if training.sync is None else training.sync.backend == "nccl"
    return wanted and any(Path("/dev").glob("nvidia[0-9]*"))


def requested_gpus(training: TrainingConfig) -> int:
    """Return the number of GPUs that a training on this machine uses: one per rank of nccl."""
    if not may_use_gpu(training):
        return 0
    return 1 if training.sync is None else training.sync.ranks


def trained_on(training: TrainingConfig) -> dict[str, Any]:
    """Return `device` and `gpus`, the names of the GPUs that a round trained on and their number.

    The name is None on a CPU, which the parent process names.
    """
    import torch

    if not may_use_gpu(training) or not torch.cuda.is_available():
        return {"device": None, "gpus": 0}
    first = _first_index(training.device)
    used = range(first, min(first + requested_gpus(training), torch.cuda.device_count()))
    names = dict.fromkeys(one_line(torch.cuda.get_device_name(index))[:DEVICE_LENGTH] for index in used)
    return {"device": " + ".join(names)[:DEVICE_LENGTH] or None, "gpus": len(used)}


def _first_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _cuda_device(index: int, location: str, hint: str) -> str:
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        raise UsageError(f"GPU {index} is not available: torch finds {count} CUDA GPUs", location=location, hint=hint)
    return f"cuda:{index}"


@dataclass(frozen=True)
class Affinity:
    """CPUs and threads of the processes of a training.

    Attributes:
        master_cpus: CPUs of the process that optimizes; empty: those that it has.
        workers_cpus: CPUs of each further process (ranks from 1, samplers, copiers), used in turn; empty: as above.
        torch_threads: Threads of torch in the process that optimizes; None: unchanged.
    """

    master_cpus: tuple[int, ...] = ()
    workers_cpus: tuple[tuple[int, ...], ...] = ()
    torch_threads: int | None = None

    @classmethod
    def of(cls, value: Affinity | Mapping[str, Any] | None) -> Self:
        """Convert a mapping with the attributes as keys. A worker's CPUs may be a single number.

        Raises:
            UsageError: A key is unknown, or this process may not use one of the CPUs.
        """
        if isinstance(value, Affinity):
            value = vars(value)
        fields = dict(value or {})
        unknown = sorted(set(fields) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise UsageError(f"unknown key {unknown[0]!r}", location="affinity", hint=f"use one of {known}")
        workers = tuple((cpus,) if isinstance(cpus, int) else tuple(cpus) for cpus in fields.get("workers_cpus", ()))
        return cls(tuple(fields.get("master_cpus", ())), workers, fields.get("torch_threads"))._checked()

    def _checked(self) -> Self:
        usable = os.sched_getaffinity(0)
        for cpus in (self.master_cpus, *self.workers_cpus):
            if missing := sorted(set(cpus) - usable):
                raise UsageError(
                    f"CPU {missing[0]} is not available", location="affinity", hint=f"use {format_cpus(usable)}"
                )
        return self

    def apply_master(self) -> None:
        """Restrict this process to `master_cpus` and set its number of torch threads."""
        if self.torch_threads is not None:
            import torch

            torch.set_num_threads(self.torch_threads)
        if self.master_cpus:
            os.sched_setaffinity(0, self.master_cpus)

    def worker(self, number: int) -> tuple[int, ...]:
        """Return the CPUs of further process `number`, from 0; empty: unrestricted."""
        return self.workers_cpus[number % len(self.workers_cpus)] if self.workers_cpus else ()


def format_cpus(cpus: Sequence[int] | set[int]) -> str:
    """Return CPU numbers as ranges: `0-3 6`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def current_cpus() -> str:
    """Return the CPUs of this process as ranges."""
    return format_cpus(os.sched_getaffinity(0))
