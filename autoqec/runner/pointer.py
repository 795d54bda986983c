"""Round pointer: a JSON file on the branch that leads to the round's artifacts, with an identical copy in the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.base import sha256_bytes, sha256_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.round import RoundMetrics, RunnerConfig, canonical_fork
from autoqec.errors import ContractError, UsageError
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.system import machine

if TYPE_CHECKING:
    from autoqec.contracts.provenance import Pointer


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
