"""QECBench-Tab: trained configs with their outcome on every shot, so that any number of shots can be replayed.

A table is one file of JSON lines. A `reference` line holds the failures of a classical decoder on the benchmark shots
of the env. A `cell` line holds one config at one fidelity and training seed: cost, status and, packed, the shots on
which exactly one of the predecoder and the baseline decoder fails.
"""

from __future__ import annotations

import base64
import math
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoqec.contracts.round import PairedCounts
from autoqec.errors import UsageError
from autoqec.ideators import space
from autoqec.ideators.space import Config, Params
from autoqec.store import jsonl

Bits = NDArray[np.bool_]
DEFAULT = Path(__file__).parents[1] / "qecbench_tab.jsonl"
HINT = "omit --table to use benchmarks/qecbench_tab.jsonl"


def pack(bits: Bits) -> str:
    """Encode bool [n] as text: packed bits, zlib, base64."""
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()


def unpack(text: str, shots: int) -> Bits:
    """Return the inverse of `pack`."""
    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(packed, count=shots).astype(bool)


@dataclass(frozen=True)
class TableEntry:
    """One measured config.

    Attributes:
        differing_shots: int64 [k], sorted: shots on which exactly one of the predecoder and the baseline decoder fails;
            None if training failed.
    """

    config: Config
    params: Params
    status: str
    reason: str | None
    n_params: int | None
    flops: int | None
    seconds: float
    differing_shots: NDArray[np.int64] | None


class Table:
    """The entries of one env, fidelity and training seed.

    Args:
        entries: Measured configs.
        baseline: bool [shots], failures of the baseline decoder.
        env: Name of the env.

    Raises:
        UsageError: There are no entries.
    """

    def __init__(self, entries: Sequence[TableEntry], baseline: Bits, *, env: str = "") -> None:
        if not entries:
            raise UsageError("the table has no entries for this env and fidelity", location="QECBench-Tab", hint=HINT)
        self.entries, self.baseline, self.env = list(entries), baseline, env
        self._by_family: dict[str, list[int]] = {}
        for index, entry in enumerate(self.entries):
            self._by_family.setdefault(entry.params["type"], []).append(index)

    @classmethod
    def read(cls, path: Path, *, env: str | None = None, fidelity: str = "full", seed: int = 0) -> Table:
        """Read a table.

        Args:
            path: JSON-lines file.
            env: Name of the env; None: the first one of the file.
            fidelity: Fidelity of the entries.
            seed: Training seed of the entries.

        Raises:
            UsageError: The file is missing or has no such entries.
        """
        if not path.is_file():
            message = "is not a regular file" if path.exists() else "does not exist"
            raise UsageError(message, location=str(path), hint=HINT)
        lines = jsonl.read(path)
        references = [line for line in lines if line["kind"] == "reference" and env in (None, line["env"])]
        baseline = next((line for line in references if line["name"] == line["plain"]), None)
        if baseline is None:
            envs = dict.fromkeys(line["env"] for line in lines if line["kind"] == "reference")
            hint = f"choose --env from {', '.join(envs)}" if envs else HINT
            raise UsageError(f"the table has no reference for env {env}", location=str(path), hint=hint)
        mine = (baseline["env"], fidelity, seed)
        rows = [
            line for line in lines if line["kind"] == "cell" and (line["env"], line["fidelity"], line["seed"]) == mine
        ]
        entries = [_entry_of_row(line) for line in rows if space.params_of(line["config"])]
        return cls(entries, unpack(baseline["failures"], baseline["shots"]), env=baseline["env"])

    def nearest(self, params: Params, used_entries: set[int]) -> int:
        """Return the index of the nearest unused entry of the same family, or of any family if that one is used up."""
        family = [index for index in self._by_family.get(params["type"], []) if index not in used_entries]
        pool = family or [index for index in range(len(self.entries)) if index not in used_entries]
        if not pool:
            raise UsageError("every entry of the table was used", location="QECBench-Tab", hint="give fewer --rounds")
        return min(pool, key=lambda index: (distance(params, self.entries[index].params), index))

    def counts(self, index: int, shots: slice) -> PairedCounts | None:
        """Paired counts of the baseline decoder and an entry on a slice of the shots; None if training failed."""
        differing_shots = self.entries[index].differing_shots
        if differing_shots is None:
            return None
        start, stop, _ = shots.indices(self.baseline.size)
        inside = differing_shots[np.searchsorted(differing_shots, start) : np.searchsorted(differing_shots, stop)]
        errors, fixed = np.count_nonzero(self.baseline[shots]), np.count_nonzero(self.baseline[inside])
        broken = inside.size - fixed
        return PairedCounts(
            shots=stop - start,
            errors_reference=errors,
            errors_candidate=errors - fixed + broken,
            fixed=fixed,
            broken=broken,
        )


def distance(first: Params, second: Params) -> float:
    """Distance of two configs: sum over shared dimensions, on a log scale for numbers, 0 or 1 for categories."""
    total = 0.0
    for key in first.keys() & second.keys():
        dimension = space.DIMENSION_BY_KEY[key]
        if dimension.choices:
            total += float(first[key] != second[key])
        else:
            total += abs(math.log(first[key] / second[key])) / math.log(dimension.high / dimension.low)
    return total


# Controls: what an ideator sees of a table --------------------------------------------------------------------------

ParamsTransform = Callable[[Params], Params]
MAX_LINEAR_INT = 16  # ranges of whole numbers up to here are mirrored linearly, larger ones on the log scale


def identity(params: Params) -> Params:
    """Return the params themselves."""
    return params


def mirror_params(params: Params) -> Params:
    """Mirror every dimension: the same landscape under keys that lost their meaning. Its own inverse."""
    out: Params = {}
    for key, value in params.items():
        dimension = space.DIMENSION_BY_KEY[key]
        if key == "type":
            out[key] = value
        elif dimension.choices:
            out[key] = dimension.choices[-1 - dimension.choices.index(value)]
        elif isinstance(dimension.low, int) and dimension.high <= MAX_LINEAR_INT:
            out[key] = dimension.low + int(dimension.high) - value
        else:
            out[key] = dimension.rounded(dimension.low * dimension.high / value)
    return out


def shuffled_indices(table: Table, seed: int) -> list[int]:
    """Return the index of the entry whose figures are reported for each entry: a random permutation."""
    order = list(range(len(table.entries)))
    random.Random(f"shuffled/{seed}").shuffle(order)
    return order


def _entry_of_row(line: dict[str, Any]) -> TableEntry:
    params = space.params_of(line["config"])
    assert params is not None  # rows outside the space were filtered
    differing_shots = None if line["differs"] is None else np.flatnonzero(unpack(line["differs"], line["shots"]))
    return TableEntry(
        line["config"], params, line["status"], line["reason"], line["n_params"], line["flops_per_syndrome"],
        line["seconds"], differing_shots,
    )  # fmt: skip
