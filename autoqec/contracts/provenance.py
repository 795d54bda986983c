"""Where a result came from: the pointer on the branch and the manifest beside the artifacts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.names import plain_path
from autoqec.contracts.round import ComposeMode, ForkFrom, RoundStatus, canonical_fork

SHA1 = r"^[0-9a-f]{40}$"
SHA256 = r"^[0-9a-f]{64}$"


class PointerProvenance(Contract):
    env_yaml_sha256: str = Field(pattern=SHA256)
    dsl_config_sha256: str = Field(pattern=SHA256)
    requirements_fingerprint: str = Field(min_length=8)
    repo_root_resolved: str


class PointerSummary(Contract):
    delta_vs_parent: float | None
    flops_per_syndrome: int | None
    n_params: int | None
    status: RoundStatus


class PointerPaths(Contract):
    checkpoint: str | None
    metrics: str
    train_log: str | None


class Pointer(Contract):
    """`round_<N>/round_<N>_pointer.json`: on the branch, and an identical copy in the run.

    `commit_sha` is the code commit; the pointer's own commit is the branch tip above it.
    """

    run_id: str
    round_idx: int = Field(ge=1)
    round_attempt_id: str = Field(min_length=1)
    branch: str
    commit_sha: str = Field(pattern=SHA1)
    fork_from: ForkFrom
    fork_from_canonical: str
    fork_from_ordered: tuple[str, ...] | None
    provenance: PointerProvenance
    metrics_summary: PointerSummary
    artifact_paths: PointerPaths

    @model_validator(mode="after")
    def _check_fork_spelling(self) -> Pointer:
        if self.fork_from_canonical != canonical_fork(self.fork_from):
            raise ValueError("`fork_from_canonical` does not spell `fork_from`")
        if (self.fork_from_ordered is not None) != isinstance(self.fork_from, tuple):
            raise ValueError("`fork_from_ordered` belongs to compositions only")
        return self


class ManifestRepo(Contract):
    commit_sha: str | None
    branch: str | None
    dirty: bool | None
    code_sha256: str = Field(pattern=SHA256, description="trusted code that can change a result")
    surface_sha256: str = Field(pattern=SHA256, description="the search surface that was run")


class ManifestEnvironment(Contract):
    env_yaml_sha256: str = Field(pattern=SHA256)
    circuit_sha256: str = Field(pattern=SHA256)
    requirements_fingerprint: str


class ManifestRound(Contract):
    run_id: str
    round_idx: int
    round_attempt_id: str | None
    fork_from: ForkFrom
    compose_mode: ComposeMode | None
    dsl_config_sha256: str = Field(pattern=SHA256)
    profile: str
    seed: int
    command_line: tuple[str, ...]


class ManifestArtifact(Contract):
    name: Annotated[str, AfterValidator(plain_path)]
    bytes: int
    sha256: str = Field(pattern=SHA256)


class Manifest(Contract):
    """`artifact_manifest.json`: what was run, with which versions, and the hash of everything it left."""

    schema_version: Literal[1] = 1
    repo: ManifestRepo
    packages: dict[str, str]
    environment: ManifestEnvironment
    round: ManifestRound
    sandbox: dict[str, Any]
    artifacts: tuple[ManifestArtifact, ...]
