"""Pointer and manifest of a round: where its artifacts are, and code, versions and config that made them.

The pointer is a JSON file on the branch, with an identical copy in the run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes, sha256_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.round import RoundMetrics, RunnerConfig, canonical_fork
from autoqec.decoders import overlay
from autoqec.errors import ContractError, UsageError
from autoqec.runner.collect import Artifact
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.store.run_log import LOGGER
from autoqec.system import git, machine

if TYPE_CHECKING:
    from autoqec.contracts.provenance import Manifest, Pointer


def write_round_pointer(config: RunnerConfig, metrics: RoundMetrics, *, repo_root: Path | str) -> Pointer:
    """Write the pointer into the round directory and into the worktree at `code_cwd`; the caller commits it.

    Args:
        config: The round.
        metrics: Its metrics.
        repo_root: Top of the workspace repository that holds `runs/`.

    Returns:
        The pointer.

    Raises:
        UsageError: The round is not on a branch.
    """
    from autoqec.contracts.provenance import Pointer, PointerPaths, PointerProvenance, PointerSummary

    if config.branch is None or config.code_cwd is None or config.commit_sha is None:
        raise UsageError("a pointer needs branch, code_cwd and commit_sha", location="RunnerConfig")
    if config.round_attempt_id is None:
        raise UsageError("a pointer needs round_attempt_id", location="RunnerConfig.round_attempt_id")
    layout = RoundLayout(Path(os.path.abspath(config.round_dir)), config.round_idx)
    pointer = Pointer(
        run_id=config.run_id,
        round_idx=config.round_idx,
        round_attempt_id=config.round_attempt_id,
        branch=config.branch,
        commit_sha=config.commit_sha,
        fork_from=config.fork_from,
        fork_from_canonical=canonical_fork(config.fork_from),
        fork_from_ordered=config.fork_from if isinstance(config.fork_from, tuple) else None,
        provenance=PointerProvenance(
            env_yaml_sha256=sha256_bytes(config.env_yaml.encode()),
            dsl_config_sha256=dsl_sha256(config),
            requirements_fingerprint=machine.requirements_fingerprint(),
            repo_root_resolved=str(Path(repo_root).resolve()),
        ),
        metrics_summary=PointerSummary(
            delta_vs_parent=metrics.delta_vs_parent,
            flops_per_syndrome=metrics.flops_per_syndrome,
            n_params=metrics.n_params,
            status=metrics.status,
        ),
        artifact_paths=PointerPaths(
            checkpoint=metrics.checkpoint_path,
            metrics=str(layout.metrics),
            train_log=metrics.training_log_path,
        ),
    )
    on_branch = Path(config.code_cwd) / pointer_on_branch(config.round_idx)
    atomic.make_dir(on_branch.parent)
    for path in (layout.pointer, on_branch):
        atomic.write_json(path, pointer.dump())
    return pointer


def read_pointer(
    text: str | bytes,
    *,
    location: str,
    run_id: str | None = None,
    round_idx: int | None = None,
    branch: str | None = None,
) -> Pointer:
    """Parse a stored pointer and check that it belongs to the given run, round and branch.

    Raises:
        ContractError: It is malformed, or belongs to another run, round or branch.
    """
    from autoqec.contracts.provenance import Pointer

    try:
        pointer = Pointer.read(json.loads(text), location=location)
    except ValueError as error:
        raise ContractError(f"not JSON: {error}", location=location) from error
    for name, expected in (("run_id", run_id), ("round_idx", round_idx), ("branch", branch)):
        if expected is not None and getattr(pointer, name) != expected:
            raise ContractError(f"`{name}` is {getattr(pointer, name)!r}, expected {expected!r}", location=location)
    return pointer


def dsl_sha256(config: RunnerConfig) -> str:
    """Return the hash of the config with every default filled in; of the literal dict if the config is invalid."""
    try:
        return parse_dsl(config.predecoder_config).sha256()
    except ContractError:
        return sha256_json(config.predecoder_config)


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
