"""Datasets by the `kind` in their config."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from autoqec.continual.environments.base import EnvDataset, EnvDatasetConfig
from autoqec.continual.environments.design_text import DesignDataset, DesignDatasetConfig, Rounds
from autoqec.continual.environments.ledger import LedgerDataset, LedgerDatasetConfig
from autoqec.continual.environments.qa_dataset import QAEnvDataset, QAEnvDatasetConfig
from autoqec.contracts.base import first_fault
from autoqec.errors import InputError

DATASETS: dict[str, tuple[type[EnvDatasetConfig], type[EnvDataset[Any]]]] = {
    "qa": (QAEnvDatasetConfig, QAEnvDataset),
    "design": (DesignDatasetConfig, DesignDataset),
    "ledger": (LedgerDatasetConfig, LedgerDataset),
}


def parse_dataset_config(data: Any, *, where: str = "dataset") -> EnvDatasetConfig:
    """A dataset's config; without `kind` it is `qa`. InputError names the wrong field or lists the kinds."""
    if isinstance(data, EnvDatasetConfig):
        return data
    if not isinstance(data, Mapping):
        raise InputError("the dataset is no mapping", where=where)
    kind = data.get("kind", "qa")
    if kind not in DATASETS:
        raise InputError(f"unknown dataset kind {kind!r}", where=where, mend=f"one of {', '.join(DATASETS)}")
    try:
        return DATASETS[kind][0].model_validate({**data, "kind": kind})
    except ValidationError as error:
        raise InputError(first_fault(error), where=where) from error


def build_dataset(
    config: EnvDatasetConfig, *, logger: logging.Logger | None = None, rounds: Rounds | None = None
) -> EnvDataset[Any]:
    """The environments of a config. rounds: what runs real rounds for designs, see `DesignDataset`."""
    if isinstance(config, DesignDatasetConfig):
        return DesignDataset(config, logger=logger, rounds=rounds)
    return DATASETS[config.kind][1](config, logger=logger)
