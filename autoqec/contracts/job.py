"""Job orders: the input of a cluster job that measures rounds, its list of further ones, and the jobs of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.names import SHA256
from autoqec.contracts.round import RunnerConfig, UtcTime


class JobOrder(Contract):
    """Content of round_<N>/job.json, written before the job is submitted and again when its number is known."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    executor: str = Field(default="slurm", description="name of the executor whose job it is")
    name: str = Field(description="unique name of the job, by which it is found if its number was not written")
    options: dict[str, str] = Field(description="of `--slurm`, defaults filled in, for this round alone")
    code_sha256: str = Field(pattern=SHA256, description="trusted code that the round is to be measured with")
    needs_sandbox: bool = Field(description="the branch changes code, which may not run without a sandbox")
    config: RunnerConfig = Field(description="what is measured")
    job_id: str | None = Field(default=None, description="null: not known to have been accepted")
    position: int = Field(default=0, ge=0, description="0: first round of the job; otherwise index in `further_rounds`")
    array_index: int | None = Field(default=None, description="element of the job array `name`; null: a job of its own")
    log_dir: str | None = Field(default=None, description="logs of the job; null: `job` in the round's directory")
    batch_time: str | None = Field(
        default=None, description="time limit of the job if it may measure several rounds; null: `time` of `options`"
    )
    further_rounds: str | None = Field(
        default=None, description="directory that lists further rounds of the job; null: it does not look for any"
    )


class FurtherRound(Contract):
    """Content of an entry of a job's list of further rounds: the round at this index, or the end of the list."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    round_dir: str | None = Field(default=None, description="absolute path of its directory; null: end of the list")
    round: int | None = Field(default=None, ge=1, description="its number; null: end of the list")


class DetachedRun(Contract):
    """Content of detached.json: the chain of jobs in which a run executes, one after another."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    number: int = Field(ge=1, description="position in the chain of the job that holds the run, or will")
    job_id: str | None = Field(default=None, description="that job; null: not known to have been accepted")
    successor_id: str | None = Field(default=None, description="queued job that continues the run when that one ends")
    began: UtcTime = Field(description="when the chain began; `hours` of `--budget` counts from here")
    handed_over: bool = Field(
        default=True, description="the last job stopped after SIGTERM, and the next one continues the run"
    )
    finished_rounds: int = Field(default=0, ge=0, description="finished rounds when the last job began")
    jobs_without_progress: int = Field(
        default=0, ge=0, description="consecutive jobs, without requeued ones, that ended early and finished no round"
    )
    ended: str | None = Field(default=None, description="why the chain ended; null: it goes on")
