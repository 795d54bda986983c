"""Provenance of a result: the pointer on the branch, and manifests of rounds, archives and packaged models."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.names import NAME, RUN_ID, RUN_REF, SHA1, SHA256, branch_name, distinct_paths, plain_path
from autoqec.contracts.round import Composed, ForkFrom, RoundStatus, canonical_fork


class PointerProvenance(Contract):
    """Hashes of what a round depends on."""

    env_yaml_sha256: str = Field(pattern=SHA256, description="hash of the frozen env file")
    dsl_config_sha256: str = Field(pattern=SHA256, description="hash of the predecoder config")
    requirements_fingerprint: str = Field(min_length=8, description="hash of the installed packages and their versions")
    repo_root_resolved: str = Field(description="absolute path of the repository when the round ran")


class PointerSummary(Contract):
    """Excerpt of metrics.json in the pointer."""

    delta_vs_parent: float | None = Field(description="as in metrics.json")
    flops_per_syndrome: int | None = Field(description="as in metrics.json")
    n_params: int | None = Field(description="as in metrics.json")
    status: RoundStatus = Field(description="as in metrics.json")


class PointerPaths(Contract):
    """Places of the round's files."""

    checkpoint: str | None = Field(description="as in metrics.json")
    metrics: str = Field(description="absolute path of metrics.json when the round ran")
    train_log: str | None = Field(description="as in metrics.json")


class Pointer(Contract):
    """`round_<N>/round_<N>_pointer.json`: on the branch, and an identical copy in the run.

    `commit_sha` is the code commit; the pointer's own commit is the branch tip above it.
    """

    run_id: str = Field(description="run of the round")
    round_idx: int = Field(ge=1, description="number of the round")
    round_attempt_id: str = Field(min_length=1, description="identifier of the attempt")
    branch: str = Field(description="branch that holds this file")
    commit_sha: str = Field(pattern=SHA1, description="commit of the code that was measured")
    fork_from: ForkFrom
    fork_from_canonical: str = Field(description="`fork_from`, sorted and joined by `|`")
    fork_from_ordered: tuple[str, ...] | None = Field(description="parents of a composition in merge order; else null")
    provenance: PointerProvenance = Field(description="hashes of what the round depends on")
    metrics_summary: PointerSummary = Field(description="excerpt of metrics.json")
    artifact_paths: PointerPaths = Field(description="where the round's files are")

    @model_validator(mode="after")
    def _check_fork_spelling(self) -> Pointer:
        if self.fork_from_canonical != canonical_fork(self.fork_from):
            raise ValueError("`fork_from_canonical` does not match `fork_from`")
        if (self.fork_from_ordered is not None) != isinstance(self.fork_from, tuple):
            raise ValueError("`fork_from_ordered` belongs to compositions only")
        return self

    @model_validator(mode="after")
    def _check_identity(self) -> Pointer:
        if "reconcile_id" in (self.model_extra or {}):
            raise ValueError("a pointer has `round_attempt_id` and no `reconcile_id`, which rows without pointer have")
        return self


class ManifestRepo(Contract):
    """Code that was measured."""

    commit_sha: str | None = Field(description="commit of the code that was measured; null outside a run")
    branch: str | None = Field(description="branch of the round; null outside a run")
    dirty: bool | None = Field(description="whether the worktree had uncommitted changes; null outside a run")
    code_sha256: str = Field(pattern=SHA256, description="trusted code that can change a result")
    surface_sha256: str = Field(pattern=SHA256, description="hash of the editable modules that were run")


class ManifestEnvironment(Contract):
    """Env and packages of a round."""

    env_yaml_sha256: str = Field(pattern=SHA256, description="hash of the frozen env file")
    circuit_sha256: str = Field(pattern=SHA256, description="hash of the circuit or model at the target p")
    requirements_fingerprint: str = Field(description="hash of the installed packages and their versions")


class ManifestRound(Contract):
    """Identity and settings of a round."""

    run_id: str = Field(description="run of the round")
    round_idx: int = Field(description="number of the round")
    round_attempt_id: str | None = Field(description="identifier of the attempt; null outside a run")
    fork_from: ForkFrom
    compose_mode: Composed
    dsl_config_sha256: str = Field(pattern=SHA256, description="hash of the predecoder config")
    profile: str = Field(description="profile of the run")
    scale: float = Field(default=1.0, description="factor on the profile's training and verification")
    seed: int = Field(description="seed of training")
    command_line: tuple[str, ...] = Field(description="arguments of the process that trained")


class ManifestArtifact(Contract):
    """One file that a round left."""

    name: Annotated[str, AfterValidator(plain_path)] = Field(description="path relative to the round's directory")
    bytes: int = Field(description="size")
    sha256: str = Field(pattern=SHA256, description="hash of the content")


class Manifest(Contract):
    """`artifact_manifest.json`: what was run, with which versions, and the hash of everything it left."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    repo: ManifestRepo = Field(description="code that was measured")
    packages: dict[str, str] = Field(description="package -> version")
    environment: ManifestEnvironment = Field(description="what was decoded, with which packages")
    round: ManifestRound = Field(description="identity of the round")
    container: str | None = optional("SHA-256 of the image that trained in; null: none")
    sandbox: dict[str, Any] = Field(description="backend and settings of the sandbox around training")
    artifacts: tuple[ManifestArtifact, ...] = Field(description="every file the round left")


BUNDLE, RUN = "branches.bundle", "run"
MAX_BYTES = 8 * 2**30
MAX_MEMBERS = 200_000
# Files of one machine: owner, log and locks of a run, a secret that is not published, recorded shots and their place.
EXCLUDED_FILES = (
    "owner.json", "owner.lock", "live.json", "stop_request.json", "detached.json", "detached", "logs",
    "secret", "history.jsonl.lock", "attempts.jsonl.lock", "recorded", "recorded_directory.txt",
)  # fmt: skip

# Suffixes of the files that a run writes: a directory of such a name would replace an expected file.
_FILES = (".json", ".jsonl", ".yaml", ".md", ".log", ".pt", ".csv", ".txt", ".html", ".hex", ".b8", ".tmp")


def member_name(name: str) -> str:
    """Return `name` if it is allowed for a member of an archive. Raises ValueError otherwise."""
    top, _, rest = plain_path(name).partition("/")
    if name != BUNDLE and (top != RUN or not rest):
        raise ValueError(f"{name!r} is neither {BUNDLE} nor a file below {RUN}/")
    if rest.partition("/")[0] in EXCLUDED_FILES:
        raise ValueError(f"{name!r} belongs to one machine, not to an archive")
    if any(part.casefold().endswith(_FILES) for part in rest.split("/")[:-1]):
        raise ValueError(f"{name!r} has a directory where a run has a file")
    return name


class ArchiveFile(Contract):
    """One member of an archive."""

    name: Annotated[str, AfterValidator(member_name)] = Field(description="path inside the archive")
    bytes: int = Field(ge=0, description="size")
    sha256: str = Field(pattern=SHA256, description="hash of the content")


class ArchiveManifest(Contract):
    """Refs of the bundle and the hash of every other member."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    run_id: str = Field(pattern=RUN_ID, description="the packaged run")
    closed: bool = Field(description="whether the verifier's secret is inside, so that every verdict can be recomputed")
    baseline_sha: str = Field(pattern=SHA1, description="commit that its rounds fork from")
    baseline_ref: Annotated[str, AfterValidator(branch_name)] | None = Field(
        description="branch that the run started on; null: detached HEAD"
    )
    code_sha256: str = Field(pattern=SHA256, description="code that can change a result, as in run.json")
    refs: dict[Annotated[str, Field(pattern=RUN_REF)], Annotated[str, Field(pattern=SHA1)]] = Field(
        min_length=1, max_length=MAX_MEMBERS, description="ref of the run's own: branch or pin -> commit"
    )
    files: tuple[ArchiveFile, ...] = Field(max_length=MAX_MEMBERS, description="every other member")

    @model_validator(mode="after")
    def _one_run(self) -> Self:
        for ref in self.refs:
            if ref.split("/")[3] != self.run_id:
                raise ValueError(f"`refs`: {ref} belongs to another run")
        if f"refs/heads/{self.baseline_ref}" in self.refs:
            raise ValueError("`baseline_ref` is a branch of the run itself")
        if sum(entry.name == BUNDLE for entry in self.files) != 1:
            raise ValueError(f"`files` must list {BUNDLE} once")
        distinct_paths(entry.name for entry in self.files)
        return self


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
