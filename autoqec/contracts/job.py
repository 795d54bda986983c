"""Job order: the input of a cluster job that measures one round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.provenance import SHA256
from autoqec.contracts.round import RunnerConfig


class JobOrder(Contract):
    """Content of round_<N>/job.json, written before the job is submitted and again when its number is known."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    name: str = Field(description="unique name of the job, by which it is found if its number was not written")
    options: dict[str, str] = Field(description="of `--slurm`, defaults filled in")
    code_sha256: str = Field(pattern=SHA256, description="trusted code that the round is to be measured with")
    needs_sandbox: bool = Field(description="the branch changes code, which may not run without a sandbox")
    config: RunnerConfig = Field(description="what is measured")
    job_id: str | None = Field(default=None, description="null: not known to have been accepted")
