"""Files of a round directory: the only readers of metrics, report, manifest, pointer and config."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autoqec.contracts.base import Contract
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import AutoqecError, ContractError
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout

if TYPE_CHECKING:
    from autoqec.contracts.provenance import Manifest, Pointer
    from autoqec.contracts.verdict import VerifyReport

ContractT = TypeVar("ContractT", bound=Contract)


@dataclass(frozen=True)
class RoundFiles:
    """The files of one round directory; None for a file that is missing or damaged."""

    metrics: RoundMetrics | None = None
    report: VerifyReport | None = None
    config: dict[str, Any] | None = None
    manifest: Manifest | None = None
    pointer: Pointer | None = None

    @property
    def sandbox(self) -> str | None:
        """Sandbox backend in which the round was measured, from its manifest."""
        return self.manifest.sandbox.get("tier") if self.manifest else None


def load_round(layout: RoundLayout) -> RoundFiles:
    """Read the files of a round directory; what is missing or damaged is left out."""
    from autoqec.contracts.provenance import Manifest, Pointer
    from autoqec.contracts.verdict import VerifyReport

    return RoundFiles(
        metrics=load_contract(layout.metrics, RoundMetrics),
        report=load_contract(layout.report_json, VerifyReport),
        config=load_config(layout.config),
        manifest=load_contract(layout.manifest, Manifest),
        pointer=load_contract(layout.pointer, Pointer),
    )


def read_contract(path: Path, kind: type[ContractT]) -> ContractT | None:
    """Read one file of a round; None if there is none.

    Raises:
        ContractError: It is not valid JSON or violates its schema.
    """
    try:
        data = json.loads(atomic.read_bytes(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not valid JSON ({error})", location=str(path)) from error
    return kind.read(data, location=str(path))


def load_contract(path: Path, kind: type[ContractT]) -> ContractT | None:
    """As `read_contract`, but None for a damaged or unreadable file, too."""
    try:
        return read_contract(path, kind)
    except (OSError, AutoqecError):
        return None


def read_metrics(path: Path) -> RoundMetrics:
    """Read the metrics of a measured round.

    Raises:
        ContractError: The file is missing or damaged.
    """
    metrics = read_contract(path, RoundMetrics)
    if metrics is None:
        raise ContractError("is missing", location=str(path))
    return metrics


def load_config(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a config file; None if the file holds none."""
    from autoqec.store import files  # with PyYAML and the contracts of env files

    try:
        value = files.load_yaml(files.read_text(path), location=str(path))
    except AutoqecError:
        return None
    return value if isinstance(value, dict) else None
