"""Answers of a language model as schemas that are sent, parsed and documented; and lessons of a run's notebook."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from autoqec.contracts.base import Contract
from autoqec.contracts.dsl import PredecoderDSL, TrainingConfig
from autoqec.contracts.messages import FileEdit, Line, Slug
from autoqec.contracts.round import ComposeMode

# The user decides how many processes train (`--pin`), not a model.
_MACHINE_BLOCKS = ("sync", "replay")
_SINGLE_PROCESS_LOOPS = ("minibatch", "minibatch_eval")


class ModelOutput(Contract):
    """A form with a short JSON schema: providers count it as part of the prompt."""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema without titles."""
        schema: dict[str, Any] = _without_titles(super().model_json_schema(*args, **kwargs))
        return schema


class SingleProcessTraining(TrainingConfig):
    """How the weights are found. Amounts of data are the profile's."""

    loop: Literal["minibatch", "minibatch_eval"] = "minibatch"
    sync: SkipJsonSchema[None] = None
    replay: SkipJsonSchema[None] = None
    device: SkipJsonSchema[Literal["auto"]] = "auto"
    snapshot_mode: SkipJsonSchema[Literal["last"]] = "last"
    snapshot_gap: SkipJsonSchema[Literal[1]] = 1

    @model_validator(mode="before")
    @classmethod
    def _check_processes(cls, data: Any) -> Any:
        if isinstance(data, dict):
            blocks = [name for name in _MACHINE_BLOCKS if data.get(name) is not None]
            loop = data.get("loop", "minibatch")
            if blocks or loop not in _SINGLE_PROCESS_LOOPS:
                message = f"the block `{blocks[0]}`" if blocks else f"the loop {loop!r}"
                raise ValueError(f"{message} is not for a proposal to choose: use {' or '.join(_SINGLE_PROCESS_LOOPS)}")
        return data


class ModelConfig(PredecoderDSL):
    """One predecoder config. Exactly the block named by `type` is present."""

    training: SingleProcessTraining = SingleProcessTraining()


def _as_list(value: Any) -> Any:
    """`"baseline"`, one branch and one round number are lists of one parent."""
    return [value] if isinstance(value, str | int) else value


class IdeatorAnswer(ModelOutput):
    """The next round as a model proposes it: an IdeatorResponse with parents by round number and a typed config."""

    hypothesis: Line = Field(description="one sentence: what is expected to help, and why")
    slug: Slug
    fork_from: Annotated[tuple[int | str, ...], BeforeValidator(_as_list)] = Field(
        default=(), max_length=4, description='round numbers; [] or "baseline" starts from the baseline'
    )
    compose_mode: ComposeMode | None = None
    proposal: ModelConfig
    code_change: str = Field(
        default="", max_length=2000, description="if code may change: what the Coder changes; empty: only the config"
    )
    source: SkipJsonSchema[str] = Field(default="", description="accepted and ignored: the model's name is recorded")


class CoderAnswer(ModelOutput):
    """The config of a round, with edits of code where they are allowed."""

    dsl_config: ModelConfig
    edits: tuple[FileEdit, ...] = Field(default=(), max_length=7)
    commit_message: Line


def _without_titles(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: _without_titles(value) for key, value in part.items() if key != "title" or not isinstance(value, str)
        }
    return [_without_titles(value) for value in part] if isinstance(part, list) else part


Figure = Literal[
    "delta_ler", "delta_vs_parent", "val_shots", "n_params", "flops_per_syndrome", "delta_vs_baseline_holdout",
    "delta_holdout_low", "delta_holdout_high",
]  # fmt: skip


class Citation(Contract):
    """One measured figure of a recorded round."""

    round: int = Field(ge=1, description="number of the round")
    figure: Figure = Field(description="field of its row in history.jsonl")
    value: float = Field(description="its value, as the lesson uses it")


class Lesson(Contract):
    """One line of notebook.jsonl."""

    id: int = Field(ge=1, description="number of the lesson in its run")
    text: Line = Field(description="what was learned")
    cites: tuple[Citation, ...] = Field(min_length=1, max_length=6, description="figures that it rests on")
    replaces: tuple[int, ...] = Field(default=(), description="lessons that this one contains, which are dropped")
    attempt: str | None = Field(default=None, description="id of the attempt that wrote it")
