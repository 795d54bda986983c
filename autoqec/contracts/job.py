"""A round that is measured by a cluster's job."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.provenance import SHA256
from autoqec.contracts.round import RunnerConfig


class JobOrder(Contract):
    """round_<N>/job.json: durable before the job is asked for, and written again when its number is known."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    name: str = Field(description="the job's name, unique: by it a job is found whose number was never written")
    options: dict[str, str] = Field(description="of `--slurm`, defaults filled in")
    code_sha256: str = Field(pattern=SHA256, description="trusted code that the round is to be measured with")
    needs_sandbox: bool = Field(description="the branch changes code, and nobody said that it may run without walls")
    config: RunnerConfig = Field(description="what is measured")
    job_id: str | None = Field(default=None, description="null: not known to have been accepted")
