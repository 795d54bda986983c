"""Job orders: the input of a cluster job that measures or verifies one round, and what a verification returns."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract, canonical_json, sha256_json
from autoqec.contracts.profiles import Profile
from autoqec.contracts.provenance import SHA256
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.contracts.timing import UtcTime


class JobOrder(Contract):
    """Content of round_<N>/job.json, written before the job is submitted and again when its number is known."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
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


class VerificationSubject(Contract):
    """An artifact of a verification job: the candidate, or a parent of a composition."""

    round_dir: str = Field(description="absolute path of the round's directory")
    round: int = Field(ge=1, description="number of the round")
    round_attempt_id: str | None = Field(description="attempt that is verified")
    branch: str | None = Field(description="branch of the round")
    commit_sha: str | None = Field(description="code commit of the round")
    dsl_config: dict[str, Any] = Field(description="config of the predecoder")
    modules_dir: str | None = Field(description="copy of the branch's editable modules; null if only trusted code runs")
    claimed: RoundMetrics | None = Field(description="metrics of the round, whose costs are claims to be checked")
    artifact_sha256: str = Field(pattern=SHA256, description="hash under which the artifact was registered")


class VerificationOrder(Contract):
    """Content of round_<N>/verification/order.json: what a job verifies. It contains no secret and no seed."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    name: str = Field(description="unique name of the job")
    options: dict[str, str] = Field(description="of `--slurm`, defaults filled in")
    code_sha256: str = Field(pattern=SHA256, description="trusted code that the candidate is to be verified with")
    run_id: str = Field(description="the run")
    env_text: str = Field(description="content of the run's env.yaml")
    profile: Profile = Field(description="shots and limits")
    candidate: VerificationSubject = Field(description="what is verified")
    parents: tuple[VerificationSubject, ...] = Field(default=(), description="parents of a composition")
    no_comparison_reason: str | None = Field(default=None, description="why a composition is not compared with parents")
    attempt_index: int = Field(ge=1, description="position in the run's stream of tests")
    discoveries_before: int = Field(ge=0, description="VERIFIED rounds before this test")
    tested_artifacts: dict[str, int] = Field(description="hash -> round of every artifact that was tested before")

    @property
    def sha256(self) -> str:
        """Hash of the order; the signature of its result covers it."""
        return sha256_json(self.dump())


class VerificationSeeds(Contract):
    """Content of round_<N>/verification/seeds, mode 0600: what the job needs of the run's secret; it deletes the file.

    The macs follow from the secret for one artifact each, so that they tell nothing about shots of any other.
    """

    order_sha256: str = Field(pattern=SHA256, description="the order that they belong to")
    commitment: str = Field(pattern=SHA256, description="SHA-256 of the run's secret")
    macs: dict[str, dict[str, tuple[str, ...]]] = Field(description="artifact hash -> purpose -> a mac per chunk, hex")
    key: str = Field(pattern=SHA256, description="signs the result; it follows from the secret and the order")


class VerificationResult(Contract):
    """Content of round_<N>/verification/result-*.json: the report of a job, or the error that it ended with, signed."""

    report: dict[str, Any] | None = Field(description="the report; null after an error")
    error: dict[str, str | None] | None = Field(default=None, description="class, message, location, hint of the error")
    signature: str = Field(pattern=SHA256, description="HMAC-SHA256 of order, report and error")

    @classmethod
    def signed(
        cls, key: str, order_sha256: str, report: dict[str, Any] | None, error: dict[str, str | None] | None = None
    ) -> VerificationResult:
        """Return the result with its signature."""
        text = canonical_json({"order": order_sha256, "report": report, "error": error})
        signature = hmac.new(bytes.fromhex(key), text.encode(), hashlib.sha256).hexdigest()
        return cls(report=report, error=error, signature=signature)

    def is_signed_with(self, key: str, order_sha256: str) -> bool:
        """Return whether the signature is that of this order under this key."""
        expected = self.signed(key, order_sha256, self.report, self.error).signature
        return hmac.compare_digest(expected, self.signature)
