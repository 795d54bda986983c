"""Selection of the device that a training uses, and the check that the machine has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoqec.contracts.dsl import TrainingConfig
from autoqec.errors import UsageError
from autoqec.runner.spec import DEVICE_LENGTH, one_line


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
    """Check that this machine has the GPUs that a config asks for. torch is imported only if it asks for one.

    Raises:
        UsageError: It has not.
    """
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
