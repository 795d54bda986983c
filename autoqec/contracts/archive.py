"""archive.json: what a packaged run holds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.provenance import SHA1, SHA256


class ArchiveFile(Contract):
    name: str
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=SHA256)


class ArchiveManifest(Contract):
    """Refs of the bundle and the hash of every other member."""

    schema_version: Literal[1] = 1
    run_id: str
    closed: bool = Field(description="whether the judge's secret is inside, so that every verdict can be drawn again")
    baseline_sha: str = Field(pattern=SHA1)
    baseline_ref: str | None
    code_sha256: str = Field(pattern=SHA256)
    refs: dict[str, str]
    files: tuple[ArchiveFile, ...]
