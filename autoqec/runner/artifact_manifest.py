"""artifact_manifest.json of a round: code, versions and config that ran, and the hash of every file it left."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.decoders import overlay
from autoqec.runner.collect import Artifact
from autoqec.runner.pointer import dsl_sha256
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout
from autoqec.store.run_log import LOGGER
from autoqec.system import git, machine

if TYPE_CHECKING:
    from autoqec.contracts.provenance import Manifest


def write_artifact_manifest(
    config: RunnerConfig, metrics: RoundMetrics, *, artifacts: Sequence[Artifact], sandbox: dict[str, Any]
) -> Manifest | None:
    """Write the manifest of an ok round. A failure is recorded in manifest_error.txt and does not fail the round."""
    layout = RoundLayout(Path(os.path.abspath(config.round_dir)), config.round_idx)
    try:
        manifest = _manifest(config, artifacts, sandbox)
        atomic.write_json(layout.manifest, manifest.dump())
        return manifest
    except Exception as error:
        LOGGER.warning("manifest not written", exc_info=True, extra={"round": config.round_idx})
        atomic.write_text(layout.manifest_error, f"{type(error).__name__}: {error}\n")
        return None


def _manifest(config: RunnerConfig, artifacts: Sequence[Artifact], sandbox: dict[str, Any]) -> Manifest:
    # numpy, stim and these contracts are not needed to start a round
    from autoqec.contracts.provenance import (
        Manifest,
        ManifestArtifact,
        ManifestEnvironment,
        ManifestRepo,
        ManifestRound,
    )
    from autoqec.qec.codes import build_source, circuit_sha256

    layout = RoundLayout(Path(os.path.abspath(config.round_dir)), config.round_idx)
    env = files.parse_env(config.env_yaml, location="env")
    round_files = [_file_artifact(path) for path in (layout.config, layout.metrics)]
    return Manifest(
        repo=ManifestRepo(
            commit_sha=config.commit_sha,
            branch=config.branch,
            dirty=_dirty(config),
            code_sha256=machine.code_sha256(),
            surface_sha256=machine.tree_sha256(resolve_modules_dir(config)),
        ),
        packages=machine.versions(),
        environment=ManifestEnvironment(
            env_yaml_sha256=sha256_bytes(config.env_yaml.encode()),
            circuit_sha256=circuit_sha256(build_source(env, env.target)),
            requirements_fingerprint=machine.requirements_fingerprint(),
        ),
        round=ManifestRound(
            run_id=config.run_id,
            round_idx=config.round_idx,
            round_attempt_id=config.round_attempt_id,
            fork_from=config.fork_from,
            compose_mode=config.compose_mode,
            dsl_config_sha256=dsl_sha256(config),
            profile=config.profile,
            scale=config.scale,
            seed=config.seed,
            command_line=tuple(sys.argv),
        ),
        container=config.container,
        sandbox=sandbox,
        artifacts=tuple(
            ManifestArtifact(name=item.name, bytes=item.bytes, sha256=item.sha256)
            for item in [*round_files, *artifacts]
        ),
    )


def _dirty(config: RunnerConfig) -> bool | None:
    """Return whether the worktree differs from its commit; None for a round without a worktree."""
    if config.code_cwd is None:
        return None
    repo = git.Repo.discover(config.code_cwd)
    return bool(repo.dirty_paths(worktree=find_worktree(config, repo)))


def find_worktree(config: RunnerConfig, repo: git.Repo) -> Path | None:
    """Return the linked worktree that holds the round's code; None for the main worktree."""
    code_dir = Path(config.code_cwd or repo.root).resolve()
    return None if code_dir == repo.root else code_dir


def resolve_modules_dir(config: RunnerConfig) -> Path:
    """Return the directory of editable modules that the round runs."""
    round_files = Path(overlay.__file__).resolve().parent / "modules"
    return round_files if config.modules_dir is None else Path(config.modules_dir).resolve()


def _file_artifact(path: Path) -> Artifact:
    data = path.read_bytes()
    return Artifact(path.name, len(data), sha256_bytes(data))
