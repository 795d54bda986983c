"""Datasets by the `kind` in their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.base import EnvDataset, EnvDatasetConfig
from autoqec.extensions.continual.environments.design_text import DesignDataset, DesignDatasetConfig, RoundRunner
from autoqec.extensions.continual.environments.ledger import RunHistoryQADataset, RunHistoryQADatasetConfig
from autoqec.extensions.continual.environments.qa_dataset import QAEnvDataset, QAEnvDatasetConfig

DATASETS: dict[str, tuple[type[EnvDatasetConfig], type[EnvDataset[Any]]]] = {
    "qa": (QAEnvDatasetConfig, QAEnvDataset),
    "design": (DesignDatasetConfig, DesignDataset),
    "ledger": (RunHistoryQADatasetConfig, RunHistoryQADataset),
}


def parse_dataset_config(data: Any) -> EnvDatasetConfig:
    """Validate the config of a dataset; the default `kind` is `qa`. UsageError names the first wrong field."""
    if isinstance(data, EnvDatasetConfig):
        return data
    if not isinstance(data, Mapping):
        raise UsageError("the dataset is not a mapping", location="dataset")
    kind = data.get("kind", "qa")
    if kind not in DATASETS:
        raise UsageError(f"unknown dataset kind {kind!r}", location="dataset", hint=f"one of {', '.join(DATASETS)}")
    try:
        return DATASETS[kind][0].model_validate({**data, "kind": kind})
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location="dataset") from error


def build_dataset(config: EnvDatasetConfig, *, round_runner: RoundRunner | None = None) -> EnvDataset[Any]:
    """Build the dataset of a config; `round_runner` runs real rounds for designs, see `DesignDataset`."""
    if isinstance(config, DesignDatasetConfig):
        return DesignDataset(config, round_runner=round_runner)
    return DATASETS[config.kind][1](config)
