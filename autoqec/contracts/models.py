"""Verified models that come with the package."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.board import NAME, SHA256


class VerifiedModel(Contract):
    """`model.json` of a packaged model: a checkpoint that a run of autoqec verified, and what it was made with."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    name: str = Field(pattern=NAME, description="name of the model")
    env_name: str = Field(description="env that it was trained and verified on")
    checkpoint_sha256: str = Field(pattern=SHA256, description="SHA-256 of checkpoint.pt, compared whenever it is used")
    archive_sha256: str = Field(pattern=SHA256, description="SHA-256 of run.tar before compression, the closed run")
    run_id: str = Field(description="the run")
    round: int = Field(ge=1, description="its round")
    licence: str = Field(description="licence of the weights")
    made_with: str = Field(description="command that made the run")
    versions: dict[str, str] = Field(description="versions of Python and packages of the run")
    claim: str = Field(description="claim of the verification report")
    translation_invariant: bool = Field(
        default=False, description="whether the weights decode other distances and numbers of rounds of the code"
    )
