"""RunConfig: a complete evaluation in one YAML file; relative paths in it are relative to the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import LMAgentConfig
from autoqec.extensions.continual.agents.registry import AGENTS, parse_agent_config
from autoqec.extensions.continual.environments.base import EnvDatasetConfig
from autoqec.extensions.continual.environments.datasets import parse_dataset_config
from autoqec.extensions.continual.memory.base import MemoryModuleConfig
from autoqec.extensions.continual.memory.modules import parse_memory_config
from autoqec.extensions.continual.named_class import resolve_class_name
from autoqec.extensions.language_models.clients import scripted
from autoqec.extensions.language_models.clients.config import LMConfig
from autoqec.installation import PACKAGE_DIR
from autoqec.store import files

EXAMPLES = PACKAGE_DIR / "data" / "configs"


def _require_inside(value: str | None) -> str | None:
    if value is not None and (Path(value).is_absolute() or ".." in Path(value).parts or value in ("", ".")):
        raise ValueError(f"{value!r} must be inside the results directory")
    return value


class RunTimeConfig(Contract):
    """How an agent visits its environments."""

    max_envs_to_visit: int | None = Field(default=None, ge=0, description="null: all; 0: validation only")
    max_steps_per_episode: int | None = Field(default=None, ge=1, description="null: no limit")
    verbose: bool = Field(default=True, description="progress bars and log lines on the console")
    scores_path: str | None = Field(default=None, description="x.jsonl -> x/train/x.jsonl and x/val/; null: no scores")
    verbose_score_logging: bool = Field(default=True, description="false: only the eight core keys")
    log_calls: bool = Field(default=False, description="one file per language-model call under llm_calls/")

    num_trials: int | None = Field(default=1, ge=1, description="visits of each environment in a row; null: 1")
    early_stop_on_success: bool = Field(
        default=False, description="`correct`, or a score of 1, in the last feedback ends the trials"
    )
    carry_memory_across_trials: bool = Field(
        default=True, description="false: later trials start from `memory_between_trials`"
    )
    memory_between_trials: Literal["empty", "env_start"] = Field(
        default="empty",
        description="initial memory of a trial without carry-over: empty, or as before the first",
    )

    validation_freq: int | None = Field(default=None, ge=1, description="every N training episodes; null: never")
    num_parallel_episodes: int = Field(default=8, ge=1, description="threads of a validation")
    validation_num_workers: int | None = Field(default=None, ge=1, description="null: num_parallel_episodes")
    run_validation_at_start: bool = Field(default=False, description="validate before the first training episode")

    checkpoint_dir: str | None = Field(default=None, description="inside the results directory")
    checkpoint_every_episodes: int | None = Field(default=None, ge=1, description="interval of `last_n`")
    checkpoint_strategy: Literal["last_n", "top_k_val"] = Field(
        default="last_n", description="top_k_val: saves at each validation and keeps the best; of equals the latest"
    )
    checkpoint_keep_last: int | None = Field(default=None, ge=0, description="checkpoints kept; null or 0: all")
    checkpoint_on_start: bool = Field(default=False, description="save before the first episode")
    resume_from: str | None = Field(default=None, description="an ep_… directory, or `latest` beside it")
    start_episode_index: int = Field(default=0, ge=0, description="number of environments to skip; set by a resume")

    @property
    def workers(self) -> int:
        """Number of parallel validation episodes."""
        return self.validation_num_workers or self.num_parallel_episodes

    _check_inside = field_validator("scores_path", "checkpoint_dir")(_require_inside)

    @model_validator(mode="after")
    def _check_checkpoint_options(self) -> RunTimeConfig:
        if self.checkpoint_dir is not None:
            periodic = self.checkpoint_every_episodes or self.checkpoint_on_start
            if self.checkpoint_strategy == "last_n" and not periodic:
                raise ValueError("strategy `last_n` needs `checkpoint_every_episodes`")
            if self.checkpoint_strategy == "top_k_val" and not (self.validation_freq or self.run_validation_at_start):
                raise ValueError("strategy `top_k_val` saves at validations: it needs `validation_freq`")
        return self


class OutputConfig(Contract):
    """Where results go and how much is logged."""

    results_dir: str = Field(default="outputs", description="parent of the results directories")
    save_memory_path: str | None = Field(
        default=None,
        description="inside the results directory: a .jsonl file for the final memory, or a folder that gets "
        "memory_<episode>.jsonl at each validation and at the end",
    )
    log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"] = Field(default="INFO", description="level of run.log")
    log_format: Literal["text", "json"] = Field(default="text", description="of run.log; json: one object per line")
    log_max_bytes: int | None = Field(
        default=None, ge=1, description="size at which run.log is rotated to run.log.1; null: never"
    )
    log_backups: int = Field(default=5, ge=1, le=100, description="rotated files that are kept")

    _check_inside = field_validator("save_memory_path")(_require_inside)


class RunConfig(Contract):
    """One evaluation. `lm` and `memory` are defaults for the agent's `lm_config` and `memory_config`."""

    runtime: RunTimeConfig = RunTimeConfig()
    dataset: SerializeAsAny[EnvDatasetConfig] = Field(validation_alias=AliasChoices("dataset", "train_dataset"))
    validation_dataset: SerializeAsAny[EnvDatasetConfig] | None = None
    lm: LMConfig
    memory: SerializeAsAny[MemoryModuleConfig] | None = None
    agent: SerializeAsAny[LMAgentConfig]
    output: OutputConfig = OutputConfig()
    seed: int | None = Field(default=None, ge=0, lt=2**32)

    @field_validator("dataset", "validation_dataset", mode="before")
    @classmethod
    def _dataset(cls, value: Any) -> Any:
        return None if value is None else parse_dataset_config(value)

    @field_validator("memory", mode="before")
    @classmethod
    def _memory(cls, value: Any) -> Any:
        return None if value is None else parse_memory_config(value)

    @model_validator(mode="before")
    @classmethod
    def _fill_agent(cls, data: Any) -> Any:
        """Fill the agent's missing settings from the top-level blocks; the agent's own settings take precedence."""
        if not isinstance(data, Mapping) or not isinstance(data.get("agent"), Mapping):
            return data
        agent = dict(data["agent"])
        known = AGENTS[agent["type"]][0].model_fields if agent.get("type") in AGENTS else {}
        if "memory_config" in known and data.get("memory") is not None:
            agent.setdefault("memory_config", data["memory"])
        return {**data, "agent": parse_agent_config(agent), "lm": data.get("lm") or agent.get("lm_config") or {}}

    @property
    def lm_config(self) -> LMConfig:
        """The language model of the agent."""
        return self.agent.lm_config or self.lm

    def snapshot(self) -> str:
        """Return YAML that loads to the same config, with every default written.

        Of a language model only explicit options are written, because a backend may reject an option that it lacks.
        """
        data = self.model_dump(mode="json", by_alias=True)
        data["lm"] = self.lm.model_dump(mode="json", exclude_unset=True)
        if self.agent.lm_config is not None:
            data["agent"]["lm_config"] = self.agent.lm_config.model_dump(mode="json", exclude_unset=True)
        return files.dump_config(data)


def examples() -> dict[str, Path]:
    """Return the packaged configs by the name that `load_config` accepts instead of a path."""
    return {path.stem: path for path in sorted(EXAMPLES.glob("*.yaml"))}


def load_config(path: Path | str) -> RunConfig:
    """Read and validate a run's YAML file.

    Args:
        path: The file, or the name of an example. Results of an example go below the current directory, not beside it.

    Returns:
        The config, every path in it absolute.

    Raises:
        UsageError: Names file and field.
    """
    known = examples()
    path = known.get(str(path)) or Path(path)
    text = files.read_text(path, what="config", hint=f"name a YAML file, or an example: {', '.join(known)}")
    data = files.load_yaml(text, location=str(path))
    if not isinstance(data, dict):
        raise UsageError("is not a mapping", location=str(path), hint=f"edit {path}")
    try:
        base = path.absolute().parent
        return resolve_paths(RunConfig.model_validate(data), base, results=Path.cwd() if base == EXAMPLES else base)
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location=str(path), hint=f"edit {path}") from error
    except UsageError as error:
        place = f"{path}: {error.location}" if error.location else str(path)
        raise UsageError(error.message, location=place, hint=error.hint) from error


def resolve_paths(config: RunConfig, base: Path, *, results: Path | None = None) -> RunConfig:
    """Return the config with absolute paths.

    Args:
        config: Config with paths relative to its file.
        base: Directory for paths that are read.
        results: Directory for the results directory; default `base`.
    """

    def absolute(value: str) -> str:
        return str((base / value).resolve())

    def dataset(value: EnvDatasetConfig | None) -> EnvDatasetConfig | None:
        return None if value is None else value.resolved(base)

    def model(value: LMConfig) -> LMConfig:
        name = value.model or ""
        if not (name.startswith(scripted.PREFIX) and name.endswith(".jsonl")):
            return value
        return value.model_copy(update={"model": scripted.PREFIX + absolute(name.removeprefix(scripted.PREFIX))})

    results_dir = ((results or base) / config.output.results_dir).resolve()
    runtime = config.runtime
    if runtime.resume_from is not None:
        runtime = runtime.model_copy(update={"resume_from": absolute(runtime.resume_from)})
    agent = config.agent
    if agent.lm_config is not None:
        agent = agent.model_copy(update={"lm_config": model(agent.lm_config)})
    if agent.agent_class is not None:
        agent = agent.model_copy(update={"agent_class": resolve_class_name(agent.agent_class, base)})
    return config.model_copy(
        update={
            "runtime": runtime,
            "dataset": dataset(config.dataset),
            "validation_dataset": dataset(config.validation_dataset),
            "lm": model(config.lm),
            "agent": agent,
            "output": config.output.model_copy(update={"results_dir": str(results_dir)}),
        }
    )
