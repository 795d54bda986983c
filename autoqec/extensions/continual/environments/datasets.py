"""Datasets by the `kind` in their config: questions of a file or of Hugging Face, of finished runs, and designs."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from pydantic import AliasChoices, Field, ValidationError, model_validator

from autoqec import optional
from autoqec.contracts.base import first_validation_error
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import Verdict
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.extensions.continual.environments.base import EnvDataset, EnvDatasetConfig, Environment
from autoqec.extensions.continual.environments.design_text import DesignDataset, DesignDatasetConfig, RoundRunner
from autoqec.extensions.continual.environments.qa import LETTERS, MathQAEnv, MCQEnv, QAEnv
from autoqec.extensions.continual.named_class import load_named_class, resolve_class_name
from autoqec.store import files, jsonl

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


Topic = Literal["verdict", "gain", "best", "cause"]
VERDICTS = get_args(Verdict)
FAILURE_STATUSES = ("compile_error", "train_error", "killed_by_safety")
# Upper bounds of the relative reduction of the logical error rate on validation shots.
GAIN_BINS = (
    (-0.01, "worse by more than 1%"),
    (0.01, "within 1%"),
    (0.05, "better by 1% to 5%"),
    (0.15, "better by 5% to 15%"),
)
TOP_GAIN_BIN = "better by more than 15%"
MAX_REASON_CHARS = 300  # shown of a status reason, which is text of another program


@dataclass(frozen=True)
class RecordedRound:
    """One row of history with the name of its run."""

    run: str
    row: HistoryRow

    @property
    def id(self) -> str:
        """Identifier of the round."""
        return f"{self.run}/round_{self.row.round}"


class RunHistoryQADatasetConfig(EnvDatasetConfig):
    """Config of RunHistoryQADataset; `runs` are run directories."""

    kind: Literal["ledger"] = "ledger"
    runs: tuple[str, ...] = Field(min_length=1)
    topics: tuple[Topic, ...] = get_args(Topic)
    of_four: int = Field(default=20, ge=0, description="questions of the kind `best`, drawn by `seed`")
    seed: int = Field(default=0, ge=0)

    def resolved(self, base: Path) -> Self:
        """Return the config with absolute paths; relative ones are relative to `base`."""
        return self.model_copy(update={"runs": tuple(str((base / run).resolve()) for run in self.runs)})


class RunHistoryQADataset(EnvDataset[RunHistoryQADatasetConfig]):
    """Questions in the order of runs and rounds. A row that cannot be read is recorded in `errors`."""

    def __init__(self, config: RunHistoryQADatasetConfig, *, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger=logger)

    def load_dataset(self) -> list[Environment]:
        """Build the questions of all topics."""
        rounds = [recorded for run in self.config.runs for recorded in self._rounds(Path(run))]
        makers = {"verdict": verdict_questions, "gain": gain_questions, "cause": cause_questions}
        questions: list[Environment] = []
        for topic in self.config.topics:
            if topic == "best":
                questions += best_of_four_questions(rounds, self.config.of_four, self.config.seed)
            else:
                questions += makers[topic](rounds)
        if not questions:
            raise UsageError(
                "no question can be asked about these runs", location="dataset.runs", hint="name other runs"
            )
        return questions

    def _rounds(self, run: Path) -> Iterator[RecordedRound]:
        history = run / "history.jsonl"
        if not history.is_file():
            raise UsageError("history.jsonl is missing", location=str(run), hint="`autoqec show` lists the runs")
        for number, line in enumerate(jsonl.read(history), start=1):
            try:
                row = HistoryRow.read(line, location=f"{history}:{number}")
            except ContractError as error:
                self.errors.append(str(error))
                continue
            if row.refers_to_attempt is None and row.dsl_config is not None:
                yield RecordedRound(run.name, row)


def verdict_questions(rounds: Sequence[RecordedRound]) -> Iterator[MCQEnv]:
    """Questions for the verdict, given what the Runner measured."""
    for recorded in rounds:
        row = recorded.row
        if row.verification is not None and row.val_shots:
            question = verdict_question(row.dsl_config or {}, row, row.verification.terms.shots)
            yield _mcq(recorded, "verdict", question, VERDICTS, row.verification.verdict)


def verdict_question(config: dict[str, Any], measured: RoundMetrics, shots: str) -> str:
    """Return the question for a verdict: config and validation counts, not the figures of the verification.

    Args:
        config: The config of the predecoder.
        measured: What the Runner measured.
        shots: How text names the verifier's shots.
    """
    counts = f"On {measured.val_shots} validation shots plain matching erred {measured.val_errors_plain} times, "
    counts += f"the predecoder {measured.val_errors_predecoder} times."
    return f"{_design(config)}\n{counts}\nWhat is the verdict of the verifier, on {shots}?"


def gain_questions(rounds: Sequence[RecordedRound]) -> Iterator[MCQEnv]:
    """Questions for sign and size of the gain, given the design alone."""
    for recorded in rounds:
        relative = _relative_gain(recorded.row)
        if relative is not None:
            question = (
                f"{_design(recorded.row.dsl_config)}\nHow did its logical error rate compare with plain matching?"
            )
            yield _mcq(recorded, "gain", question, [*(name for _, name in GAIN_BINS), TOP_GAIN_BIN], gain_bin(relative))


def gain_bin(relative: float) -> str:
    """Return the bin of a relative reduction; an upper bound belongs to its bin."""
    return next((name for bound, name in GAIN_BINS if relative <= bound), TOP_GAIN_BIN)


def cause_questions(rounds: Sequence[RecordedRound]) -> Iterator[MCQEnv]:
    """Questions for the cause of a failure, given its message."""
    for recorded in rounds:
        if recorded.row.status in FAILURE_STATUSES:
            reason = " ".join((recorded.row.status_reason or "").split())[:MAX_REASON_CHARS]
            excerpt = f"The round failed with this message:\n<data>{reason}</data>"
            question = f"{_design(recorded.row.dsl_config)}\n{excerpt}\nWhat was it?"
            yield _mcq(recorded, "cause", question, FAILURE_STATUSES, recorded.row.status)


def best_of_four_questions(rounds: Sequence[RecordedRound], count: int, seed: int) -> Iterator[MCQEnv]:
    """Questions for the best of four designs of one run; sets with a tie for the best are skipped."""
    rng = random.Random(seed)
    by_run: dict[str, list[RecordedRound]] = {}
    for recorded in rounds:
        if recorded.row.ler_predecoder is not None:
            by_run.setdefault(recorded.run, []).append(recorded)
    pools = [pool for pool in by_run.values() if len(pool) >= 4]
    for number in range(count if pools else 0):
        four = rng.sample(rng.choice(pools), 4)
        rates = [float(recorded.row.ler_predecoder or 0.0) for recorded in four]
        if rates.count(min(rates)) == 1:
            question = "Which of these designs had the lowest logical error rate?"
            options = [json.dumps(recorded.row.dsl_config, sort_keys=True) for recorded in four]
            name, answer = f"{four[0].run}/best_{number + 1}", rates.index(min(rates))
            yield MCQEnv(question, answer, {"topic": "best"}, choices=options, env_id=name)


def _mcq(recorded: RecordedRound, topic: Topic, question: str, choices: Sequence[str], answer: str) -> MCQEnv:
    metadata = {"topic": topic, "round": recorded.id}
    return MCQEnv(question, answer, metadata, choices=list(choices), env_id=f"{recorded.id}/{topic}")


def _design(config: dict[str, Any] | None) -> str:
    return f"A predecoder was trained with this config: {json.dumps(config, sort_keys=True)}"


def _relative_gain(row: HistoryRow) -> float | None:
    plain, candidate = row.val_errors_plain, row.val_errors_predecoder
    return None if not plain or candidate is None else (plain - candidate) / plain


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
