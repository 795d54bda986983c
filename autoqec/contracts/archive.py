"""Manifest of a packaged run, archive.json. All of its content is untrusted."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.names import RUN_ID, RUN_REF, SHA1, SHA256, branch_name, distinct_paths, plain_path

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
