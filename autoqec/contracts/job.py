"""Order of a round that is measured outside the process that runs the rounds, and the mark of a detached run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.names import SHA256
from autoqec.contracts.round import RunnerConfig, UtcTime


class JobOrder(Contract):
    """Content of round_<N>/job.json, written before the job is submitted and again when its number is known."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    executor: str = Field(description="name of the executor that submits the job and finds it again")
    name: str = Field(description="unique name of the job, by which it is found if its number was not written")
    options: dict[str, str] = Field(description="of the job, defaults filled in")
    code_sha256: str = Field(pattern=SHA256, description="trusted code that the round is to be measured with")
    needs_sandbox: bool = Field(description="the branch changes code, which may not run without a sandbox")
    config: RunnerConfig = Field(description="what is measured")
    job_id: str | None = optional("null: not known to have been accepted")
    array_index: int | None = optional("element of the job array `name`; null: a job of its own")
    log_dir: str | None = optional("directory of its log; null: not submitted")


class DetachedRun(Contract):
    """Content of detached.json, which exists while a job of a cluster executes the run, or will."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    began: UtcTime = Field(description="when the run was detached; `hours` of `--budget` counts from here")
