"""CPU affinity of the processes of a training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from autoqec.errors import UsageError


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
