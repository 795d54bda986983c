"""Order of a cluster job that verifies a candidate, the seeds that it gets, and its signed result."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract, canonical_json, optional, sha256_json
from autoqec.contracts.names import SHA256
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import RoundMetrics


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
    no_comparison_reason: str | None = optional("why a composition is not compared with parents")
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
    error: dict[str, str | None] | None = optional("class, message, location, hint of the error")
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
