"""artifact_manifest.json: what was run, with which versions, and the hash of everything it left."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.provenance import (
    Manifest,
    ManifestArtifact,
    ManifestEnvironment,
    ManifestRepo,
    ManifestRound,
)
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.decoders import overlay
from autoqec.qec.codes import build_source
from autoqec.runner.collect import Artifact
from autoqec.runner.pointer import dsl_sha256
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout
from autoqec.store.run_log import LOGGER
from autoqec.system import git, machine


def write_artifact_manifest(
    config: RunnerConfig, metrics: RoundMetrics, *, artifacts: Sequence[Artifact], sandbox: dict[str, Any]
) -> Manifest | None:
    """Write the manifest of an ok round. A failure is noted in manifest_error.txt and fails nothing else."""
    layout = RoundLayout(Path(config.round_dir).resolve(), config.round_idx)
    try:
        manifest = _manifest(config, artifacts, sandbox)
        atomic.write_json(layout.manifest, manifest.dump())
        return manifest
    except Exception as error:
        LOGGER.warning("no manifest was written", exc_info=True, extra={"round": config.round_idx})
        atomic.write_text(layout.manifest_error, f"{type(error).__name__}: {error}\n")
        return None


def _manifest(config: RunnerConfig, artifacts: Sequence[Artifact], sandbox: dict[str, Any]) -> Manifest:
    layout = RoundLayout(Path(config.round_dir).resolve(), config.round_idx)
    env = files.parse_env(config.env_yaml, where="env")
    own = [_on_disk(path) for path in (layout.config, layout.metrics)]
    return Manifest(
        repo=ManifestRepo(
            commit_sha=config.commit_sha,
            branch=config.branch,
            dirty=_dirty(config),
            code_sha256=machine.code_sha256(),
            surface_sha256=machine.tree_sha256(modules_of(config)),
        ),
        packages=machine.versions(),
        environment=ManifestEnvironment(
            env_yaml_sha256=sha256_bytes(config.env_yaml.encode()),
            circuit_sha256=sha256_bytes(str(build_source(env, env.target)).encode()),
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
            seed=config.seed,
            command_line=tuple(sys.argv),
        ),
        sandbox=sandbox,
        artifacts=tuple(
            ManifestArtifact(name=item.name, bytes=item.bytes, sha256=item.sha256) for item in [*own, *artifacts]
        ),
    )


def _dirty(config: RunnerConfig) -> bool | None:
    """Whether the worktree differs from its commit; None for a round that is in no worktree."""
    if config.code_cwd is None:
        return None
    repo = git.Repo.discover(config.code_cwd)
    return bool(repo.dirty_paths(worktree=worktree_of(config, repo)))


def worktree_of(config: RunnerConfig, repo: git.Repo) -> Path | None:
    """The linked worktree that the round's code stands in; None: the main one."""
    place = Path(config.code_cwd or repo.root).resolve()
    return None if place == repo.root else place


def modules_of(config: RunnerConfig) -> Path:
    """The search surface that this round runs."""
    own = Path(overlay.__file__).resolve().parent / "modules"
    return own if config.modules_dir is None else Path(config.modules_dir).resolve()


def _on_disk(path: Path) -> Artifact:
    data = path.read_bytes()
    return Artifact(path.name, len(data), sha256_bytes(data))
