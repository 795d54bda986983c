"""What one call of `autoqec run` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.run_spec import RunSpec

if TYPE_CHECKING:
    from autoqec.store.layout import RunLayout
    from autoqec.system.git import Repo


@dataclass(frozen=True)
class RunRequest:
    """What one call of `autoqec run`, or of its Python counterpart, asks for.

    Attributes:
        repo: The repository of the current directory.
        spec: The specification; at a resume the stored one, updated by the options that are given.
        given: Names of the options that the caller gave, with underscores.
        env_path: Env file of a new run; None at a resume.
        layout: The run that is resumed; None: a new one.
        n_edges: Edges of the matching graph that set the scale; None if they did not.
    """

    repo: Repo
    spec: RunSpec
    given: frozenset[str] = frozenset()
    env_path: Path | None = None
    layout: RunLayout | None = None
    n_edges: int | None = None

    @property
    def root(self) -> Path:
        """Top of the workspace; stored paths of `spec` are relative to it."""
        return Path(self.repo.root)
