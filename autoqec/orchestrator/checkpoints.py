"""Opens a checkpoint for decoding: finds its env and code, and compares it with the verified artifact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autoqec import locate
from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.orchestrator.editable_modules import checked_out_modules
from autoqec.orchestrator.verify_round import require_verified
from autoqec.store.files import load_env


@dataclass(frozen=True)
class OpenCheckpoint:
    """A checkpoint, its env, and whether it was compared with a verified artifact."""

    path: Path
    env: EnvSpec
    verified: bool


@contextmanager
def open_checkpoint(
    checkpoint: Path, env_name: str | None, *, trust_code: bool = False, unverified: bool = False
) -> Iterator[OpenCheckpoint]:
    """Open a checkpoint; code that its branch changed is in effect within the context.

    Args:
        checkpoint: A round directory, or a checkpoint.pt.
        env_name: Env name or file; by default the env of the run.
        trust_code: Whether code that the branch changed may run with all permissions of the user.
        unverified: Whether to skip the comparison with the verified artifact.

    Raises:
        UsageError: The checkpoint or its env cannot be found, is not a verified artifact, or needs untrusted code.
    """
    try:
        layout, number = locate.parse_round_dir(checkpoint if checkpoint.is_dir() else checkpoint.parent)
    except UsageError as error:
        if checkpoint.is_dir():
            raise
        if not checkpoint.exists():
            hint = "name a round directory, runs/RUN/round_N, or a checkpoint.pt"
            raise UsageError("does not exist", location=str(checkpoint), hint=hint) from error
        if env_name is None:
            message = "does not belong to a run, so its env must be named"
            raise UsageError(message, location=str(checkpoint), hint="add --env ENV") from error
        yield OpenCheckpoint(checkpoint, load_env(locate.env_file(env_name))[0], verified=False)
        return
    path = layout.round(number).checkpoint if checkpoint.is_dir() else checkpoint
    with checked_out_modules(layout, number) as modules_dir:
        if modules_dir is not None and not trust_code:
            message = f"the branch of round {number} changed code, which would run with all your permissions"
            hint = "review it with `git diff`, then add --trust-code"
            raise UsageError(message, location=f"run {layout.run_id}", hint=hint)
        if modules_dir is not None:
            from autoqec.decoders import overlay

            overlay.use_modules_dir(modules_dir)
        if not unverified:
            require_verified(layout, number, path, modules_dir, override="add --unverified")
        env, _ = load_env(locate.env_file(env_name) if env_name else layout.env)
        yield OpenCheckpoint(path, env, verified=not unverified)
