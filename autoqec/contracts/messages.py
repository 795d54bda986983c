"""Responses of the roles: the same models for a search and for a language model."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from autoqec.contracts.base import Contract, first_validation_error
from autoqec.contracts.round import Composed, ForkFrom
from autoqec.errors import ContractError

Line = Annotated[str, Field(min_length=1, max_length=400)]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)]
Paragraph = Annotated[str, Field(min_length=1, max_length=4000)]


class IdeatorResponse(Contract):
    """What to try next, and from where."""

    hypothesis: Line = Field(description="one sentence: what is expected to help, and why")
    slug: Slug = Field(description="short name for the branch")
    fork_from: ForkFrom = "baseline"
    compose_mode: Composed = None
    proposal: dict[str, Any] = Field(description="the predecoder config that embodies the hypothesis")
    code_change: str = Field(
        default="", max_length=2000, description="what changes in the editable modules; empty: only the config"
    )
    source: str = Field(default="", max_length=200, description="which ideator spoke, and from which state")

    @model_validator(mode="after")
    def _mode_fits(self) -> IdeatorResponse:
        if (self.compose_mode is not None) != isinstance(self.fork_from, tuple):
            raise ValueError("`compose_mode` belongs to a composition (a list in `fork_from`), and to nothing else")
        return self


class FileEdit(Contract):
    """One whole file of the editable modules."""

    path: str = Field(max_length=120, description="name inside the directory of editable modules")
    text: str = Field(max_length=200_000, description="new content of the whole file")


class CoderResponse(Contract):
    """The hypothesis as a config and edits of the editable modules."""

    dsl_config: dict[str, Any] = Field(description="config of the predecoder (PredecoderDSL)")
    edits: tuple[FileEdit, ...] = Field(default=(), max_length=8, description="files to replace or add")
    commit_message: Line = Field(description="subject of the commit")


class AnalystResponse(Contract):
    """A nomination for verification, not a verdict."""

    verdict: Literal["candidate", "ignore"] = Field(description="candidate: propose the round for verification")
    summary_1line: Line = Field(description="one sentence for logs and tables")
    analysis: Paragraph = Field(description="what the measured figures say")
    next_hypothesis_seed: Line = Field(description="advice for the next rounds")


Reply = TypeVar("Reply", bound=Contract)


def parse_response(kind: type[Reply], text: str) -> Reply:
    """Parse a role's response from JSON; ContractError names the first wrong field."""
    try:
        return kind.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise ContractError(f"not JSON: {error.msg} at character {error.pos}", location=kind.__name__) from error
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=kind.__name__) from error
