"""QAEnvDataset: questions from the config, a JSON file, or Hugging Face `datasets`."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import AliasChoices, Field, model_validator

from autoqec import optional
from autoqec.errors import AutoqecError, UsageError
from autoqec.extensions.continual.environments.base import EnvDataset, EnvDatasetConfig, Environment
from autoqec.extensions.continual.environments.math_qa import MathQAEnv
from autoqec.extensions.continual.environments.mcq import LETTERS, MCQEnv
from autoqec.extensions.continual.environments.qa import QAEnv
from autoqec.extensions.continual.named_class import load_named_class, resolve_class_name
from autoqec.store import files

TASKS: dict[str, type[QAEnv]] = {"exact": QAEnv, "numeric": MathQAEnv, "mcq": MCQEnv}
ENV_CLASSES: dict[str, type[QAEnv]] = {"QAEnv": QAEnv, "MathQAEnv": MathQAEnv, "MCQEnv": MCQEnv}

Row = Mapping[str, Any]


class QAEnvDatasetConfig(EnvDatasetConfig):
    """Exactly one source: `items`, `dataset_path` (.jsonl, .json, or a folder of `save_to_disk`), or `hf_name`."""

    kind: Literal["qa"] = "qa"
    items: tuple[dict[str, Any], ...] | None = None
    dataset_path: str | None = None
    hf_name: str | None = None
    hf_config: str | None = None
    split: str | None = None
    question_field: str = Field(default="question", validation_alias=AliasChoices("question_field", "input_field"))
    answer_field: str = Field(default="answer", validation_alias=AliasChoices("answer_field", "target_field"))
    choices_field: str | tuple[str, ...] | None = Field(
        default=None, description="a field that holds a list, or the fields that hold one choice each"
    )
    shuffle_choices: bool = Field(default=False, description="in an order drawn from the question: the same every time")
    id_field: str | None = None
    meta_fields: tuple[str, ...] = ()
    task_type: Literal["exact", "numeric", "mcq", "custom"] = "exact"
    env_class: str | None = Field(
        default=None,
        description="QAEnv, MathQAEnv, MCQEnv, package.module.Class, or module.Class of a file beside the config",
    )
    tolerance: float | None = Field(
        default=None, ge=0, description="of numeric answers, relative and absolute; null: 1e-6, and integers exactly"
    )
    prompt_template: str | None = Field(default=None, description="a hint, passed on in the info of each step")
    instruction_template: str | None = Field(default=None, description="the observation, with {question} in it")

    def resolved(self, base: Path) -> Self:
        """Return the config with absolute paths; relative ones are relative to `base`."""
        changes: dict[str, str] = {}
        if self.dataset_path is not None:
            changes["dataset_path"] = str((base / self.dataset_path).resolve())
        if self.env_class is not None and self.env_class not in ENV_CLASSES:
            changes["env_class"] = resolve_class_name(self.env_class, base)
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check_sources(self) -> QAEnvDatasetConfig:
        sources = [name for name in ("items", "dataset_path", "hf_name") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"one of `items`, `dataset_path`, `hf_name` is needed; {len(sources)} are given")
        if self.task_type == "custom" and self.env_class is None:
            raise ValueError("task_type `custom` needs `env_class`")
        if self.instruction_template is not None and "{question}" not in self.instruction_template:
            raise ValueError("`instruction_template` does not contain {question}")
        return self


class QAEnvDataset(EnvDataset[QAEnvDatasetConfig]):
    """Environments of the rows. A row that is not usable is recorded in `errors` and skipped."""

    def __init__(self, config: QAEnvDatasetConfig, *, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger=logger)

    def load_dataset(self) -> list[Environment]:
        """Build one environment per usable row."""
        kind = env_class(self.config)
        if self.config.tolerance is not None and not issubclass(kind, MathQAEnv):
            raise UsageError(
                f"{kind.__name__} compares no numbers", location="dataset.tolerance", hint="use `task_type: numeric`"
            )
        found: list[Environment] = []
        rows = 0
        for rows, row in enumerate(_rows(self.config), start=1):
            try:
                found.append(self._env(kind, row, rows))
            except (AutoqecError, KeyError, TypeError, ValueError) as error:
                row_error = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
                self.errors.append(f"row {rows}: {row_error}")
                self.logger.error("row %d skipped: %s", rows, row_error)
        if not found:
            reason = f"; first error: {self.errors[0]}" if self.errors else ""
            raise UsageError(f"none of the {rows} rows is usable{reason}", location="dataset")
        return found

    def _env(self, kind: type[QAEnv], row: Row, number: int) -> QAEnv:
        config = self.config
        question, answer = str(row[config.question_field]), row[config.answer_field]
        metadata: dict[str, Any] = {}
        if config.id_field is not None:
            metadata["id"] = row[config.id_field]
        if config.choices_field is not None:
            metadata["choices"], answer = _choices(config, row, question, answer)
        metadata |= {name: row[name] for name in config.meta_fields}
        if config.prompt_template is not None:
            metadata["prompt_template"] = config.prompt_template
        env_id = str(metadata["id"]) if "id" in metadata else f"{kind.env_type}_{number}"
        options: dict[str, Any] = {"instruction_template": config.instruction_template, "env_id": env_id}
        if config.tolerance is not None:
            options["tolerance"] = config.tolerance
        return kind(question, answer, metadata, **options)


def env_class(config: QAEnvDatasetConfig) -> type[QAEnv]:
    """Return the class of the environments. UsageError for a class that is unknown or not a QAEnv."""
    if config.env_class is None:
        return TASKS[config.task_type]
    if config.env_class in ENV_CLASSES:
        return ENV_CLASSES[config.env_class]
    return load_named_class(config.env_class, QAEnv, location="dataset.env_class", known=tuple(ENV_CLASSES))


def _choices(config: QAEnvDatasetConfig, row: Row, question: str, answer: Any) -> tuple[list[str], Any]:
    """Return the choices of a row, and the answer in terms of them."""
    field = config.choices_field
    found = [str(row[name]) for name in field] if isinstance(field, tuple) else [str(item) for item in row[str(field)]]
    if config.shuffle_choices:
        answer = found[LETTERS.index(MCQEnv("", answer, choices=found).target_letter)]
        random.Random(hashlib.sha256(question.encode()).hexdigest()).shuffle(found)
    return found, answer


def _rows(config: QAEnvDatasetConfig) -> Iterable[Row]:
    if config.items is not None:
        return config.items
    if config.hf_name is not None:
        loaded = _hugging_face("load_dataset", config.hf_name, config.hf_config, split=config.split)
        return _one_split(loaded, config.split)
    path = Path(str(config.dataset_path))
    if path.suffix == ".jsonl":
        return _json_lines(path)
    if path.suffix == ".json":
        text = files.read_text(path, what="dataset", hint="correct `dataset_path`")
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise UsageError(f"not JSON: {error}", location=str(path)) from error
        if not isinstance(rows, list):
            raise UsageError("does not contain a list of rows", location=str(path))
        return rows
    if not path.is_dir():
        raise UsageError("the dataset does not exist", location=str(path), hint="correct `dataset_path`")
    return _one_split(_hugging_face("load_from_disk", str(path)), config.split)


def _one_split(loaded: Any, split: str | None) -> Iterable[Row]:
    """Return the rows of the split: the named one, or the only one."""
    if not isinstance(loaded, Mapping):
        return cast(Iterable[Row], loaded)
    if split is None and len(loaded) == 1:
        split = next(iter(loaded))
    if split not in loaded:
        names = ", ".join(loaded)
        message = "the dataset has several splits" if split is None else f"the dataset has no split {split!r}"
        raise UsageError(message, location="dataset.split", hint=f"set `split` to one of: {names}")
    return cast(Iterable[Row], loaded[split])


def _json_lines(path: Path) -> list[Row]:
    """Return all rows, including a last line without a newline: the file was written by the user."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the dataset cannot be read: {error}", location=str(path), hint="correct `dataset_path`"
        ) from error
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise UsageError(f"not JSON: {error}", location=f"{path}:{number}") from error
        if row is not None:
            rows.append(row)
    return rows


def _hugging_face(function: str, *args: Any, **kwargs: Any) -> Any:
    datasets = optional.load("datasets", extra="hf", location="dataset")
    try:
        return getattr(datasets, function)(*args, **kwargs)
    except Exception as error:  # the library raises many types: no network, unknown name, unknown split
        hint = None
        if function == "load_dataset":
            local = "download it where there is a network and set `dataset_path` to a folder of `save_to_disk`"
            is_private = any(word in str(error).lower() for word in ("gated", "401", "403", "authenticat"))
            key = f"set HF_TOKEN, after accepting the terms at https://huggingface.co/datasets/{args[0]}; or "
            hint = (key if is_private else "") + local
        raise UsageError(f"`datasets.{function}` failed: {error}", location="dataset", hint=hint) from error
