"""Memory of a decoding problem, estimated from a detector error model whose loops are not unrolled.

Estimates are somewhat below the measured peaks (docs/results/long-experiments.md), so that a problem that fits is not
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.qec.codes import build_source
from autoqec.qec.error_stream import SEPARATOR, ErrorStream, SectorFinder
from autoqec.qec.problem import detector_coordinates, error_model
from autoqec.system.memory import require_bytes

# Bytes per target of an error, measured at d=5 and 9 with 100 to 1,000 rounds: 159 to 172 while a matching graph is
# built (SI1000: 266), 106 to 136 for a Tanner graph (bb72, 6 and 60 rounds); 62 to 70 afterwards.
BUILD_BYTES = {"mwpm": 150}
OTHER_BUILD_BYTES = 100
KEPT_BYTES = 60
MODEL = "model and graph"
REPETITIONS = 3  # of a loop that are read; from the second on, each has the same errors and connections


@dataclass(frozen=True)
class ModelSize:
    """Size of a detector error model with its loops unrolled.

    Attributes:
        backend: The inner decoder.
        n_detectors: Detectors.
        n_errors: Error mechanisms that flip something.
        n_targets: Detectors, observables and separators of all of them.
        n_edges: Variables of the graph that is decoded: for matching, edges of the components in which an edge flips
            an observable; for a Tanner graph of one sector, error mechanisms that differ there.
    """

    backend: str
    n_detectors: int
    n_errors: int
    n_targets: int
    n_edges: int

    @classmethod
    def of(cls, dem: stim.DetectorErrorModel, env: EnvSpec) -> ModelSize:
        """Count what a model has for the inner decoder of an env, without unrolling its loops.

        Args:
            dem: The model.
            env: Selects the inner decoder; a sector of a Tanner graph is not known without coordinates in the model.
        """
        short = _shortened(dem)
        in_sector, known = _in_sector(short, env), set[tuple[int, ...]]()
        n_errors = n_targets = n_edges = 0
        for (p, targets), count in zip(_errors(short), _repetitions(dem, "error"), strict=True):
            n_errors += count
            n_targets += count * len(targets)
            if in_sector is not None and p > 0:
                new = set(_variables(targets, in_sector, env.backend)) - known
                n_edges += count * len(new)
                known |= new
        return cls(env.backend, dem.num_detectors, n_errors, n_targets, n_errors if in_sector is None else n_edges)

    @classmethod
    def of_env(cls, env: EnvSpec, p: float | None) -> ModelSize:
        """Count what the model of an env has at an error rate.

        Raises:
            UsageError: The circuit cannot be built or decoded.
        """
        return cls.of(error_model(build_source(env, p), env), env)

    @property
    def kept_bytes(self) -> int:
        """Return the memory of the problem."""
        return KEPT_BYTES * self.n_targets

    @property
    def build_bytes(self) -> int:
        """Return the peak while the problem is built."""
        return BUILD_BYTES.get(self.backend, OTHER_BUILD_BYTES) * self.n_targets


def require_problem_memory(env: EnvSpec) -> None:
    """Check that the problems of an env can be built, at every p.

    Raises:
        UsageError: The machine has less memory, or a circuit cannot be built or decoded.
    """
    sizes = [ModelSize.of_env(env, p) for p in env.points]
    largest = max(size.build_bytes - size.kept_bytes for size in sizes)
    needed = {f"{MODEL} at every p": sum(size.kept_bytes for size in sizes) + largest}
    require_bytes(needed, f"env `{env.name}`", "choose fewer rounds or a smaller distance")


def count_rounds(dem: stim.DetectorErrorModel) -> int:
    """Return the number of different times of detectors, their third or last coordinate; loops are not unrolled."""
    positions = [each.args_copy() for each in _shortened(dem).flattened() if each.type == "detector"]
    axis = min(3, max(map(len, positions), default=0)) - 1
    n_rounds, known = 0, set[tuple[float, ...]]()
    for position, count in zip(positions, _repetitions(dem, "detector"), strict=True):
        time = tuple(position[axis : axis + 1]) if axis >= 0 else ()
        n_rounds += 0 if time in known else count
        known.add(time)
    return n_rounds


def _shortened(dem: stim.DetectorErrorModel) -> stim.DetectorErrorModel:
    """Return the model with at most REPETITIONS of each loop."""
    short = stim.DetectorErrorModel()
    for instruction in dem:
        if isinstance(instruction, stim.DemRepeatBlock):
            count = min(instruction.repeat_count, REPETITIONS)
            short.append(stim.DemRepeatBlock(count, _shortened(instruction.body_copy())))
        else:
            short.append(instruction)
    return short


def _repetitions(dem: stim.DetectorErrorModel, kind: str) -> Iterator[int]:
    """Yield how many instructions of a kind each one of the shortened model stands for, itself included."""
    for instruction in dem:
        if isinstance(instruction, stim.DemRepeatBlock):
            body = list(_repetitions(instruction.body_copy(), kind))
            last = min(instruction.repeat_count, REPETITIONS) - 1
            yield from body * last
            yield from ((instruction.repeat_count - last) * count for count in body)
        elif instruction.type == kind and instruction.targets_copy():
            yield 1


def _errors(dem: stim.DetectorErrorModel) -> Iterator[tuple[float, list[int]]]:
    """Yield probability and targets of each error that flips something, numbered as in `Errors`."""
    for block in ErrorStream(dem):
        ends, targets = np.cumsum(block.lengths), block.targets.tolist()
        starts = (ends - block.lengths).tolist()
        for p, start, end in zip(block.probabilities.tolist(), starts, ends.tolist(), strict=True):
            yield p, targets[start:end]


def _in_sector(dem: stim.DetectorErrorModel, env: EnvSpec) -> np.ndarray | None:
    """Return bool [n_detectors], the detectors that are decoded; None if all are."""
    if env.backend == "mwpm":
        finder = SectorFinder(dem.num_detectors)
        for block in ErrorStream(dem):
            finder.add(block)
        return finder.found()
    if env.bp.sector is None:
        return None
    found = detector_coordinates(dem, dem.num_detectors)[:, -1:] == env.bp.sector
    return found.any(axis=1) if found.any() else None


def _variables(targets: list[int], in_sector: np.ndarray, backend: str) -> Iterator[tuple[int, ...]]:
    """Yield what an error flips in the sector, once for each of its parts that can be matched."""
    flipped: set[int] = set()
    for target in [*targets, SEPARATOR]:
        if target != SEPARATOR:
            flipped ^= {target} if target < 0 or in_sector[target] else set()
        elif backend == "mwpm":
            if any(each >= 0 for each in flipped):
                yield tuple(sorted(flipped))
            flipped = set()
    if any(each >= 0 for each in flipped):
        yield tuple(sorted(flipped))
