"""`autoqec decode`: decode recorded shots with a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli import paths
from autoqec.cli.common import Output, options
from autoqec.errors import UsageError
from autoqec.reporting.text import pluralize
from autoqec.system.machine import cpu_count

if TYPE_CHECKING:
    from autoqec.contracts.env import EnvSpec
    from autoqec.store.layout import RunLayout

FORMATS = ("b8", "r8", "ptb64", "01", "hits", "dets")


@click.command("decode")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "--in", "shots", type=click.Path(path_type=Path), required=True, help="Detection events in a format of stim."
)
@click.option(
    "--out", "target", type=click.Path(path_type=Path), required=True, help="File for predicted observable flips."
)
@click.option("--in-format", type=click.Choice(FORMATS), help="Default: by file extension, otherwise b8.")
@click.option("--out-format", type=click.Choice(FORMATS), help="Default: by file extension, otherwise b8.")
@click.option(
    "--env", "env_name", metavar="ENV", help="Env that the checkpoint was trained on; default: that of its run."
)
@click.option(
    "--dem", type=click.Path(path_type=Path), help="Error model of the shots (.dem or .stim); default: that of the env."
)
@click.option(
    "--allow-other-dem", is_flag=True, help="Accept a --dem with other error mechanisms, such as one of a device."
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the network.")
@click.option("--trust-code", is_flag=True, help="Run code that the branch of the round changed, outside the sandbox.")
@click.option("--unverified", is_flag=True, help="Also decode with a checkpoint that is not a verified artifact.")
@options
def command(
    checkpoint: Path,
    shots: Path,
    target: Path,
    in_format: str | None,
    out_format: str | None,
    env_name: str | None,
    dem: Path | None,
    allow_other_dem: bool,
    threads: int,
    trust_code: bool,
    unverified: bool,
    out: Output,
) -> None:
    """Decode shots with CHECKPOINT: a round directory, or a checkpoint.pt.

    Reads detection events and writes one predicted flip per observable, in formats of stim. Files of a round are
    compared with its verified artifact first. A --dem with the same error mechanisms changes their priors only; any
    other is rejected unless --allow-other-dem is given: then mechanisms of both models use the network, and the others
    keep the probabilities of the file.
    """
    _check_target(shots, target)
    if allow_other_dem and dem is None:
        raise UsageError("needs a model", location="--allow-other-dem", hint="add --dem FILE")
    if threads > cpu_count():
        raise UsageError(f"{threads} threads on {cpu_count()} cores", location="--threads", hint="use fewer threads")
    with ExitStack() as exit_stack:
        loaded = _load_checkpoint(checkpoint, env_name, trust_code, unverified, exit_stack)
        if not loaded.verified:
            out.note("warning: this checkpoint is not a verified artifact")
        import torch

        from autoqec.decoders.decoding import CHUNK, CheckpointDecoder, read_model
        from autoqec.qec import shotfiles

        torch.set_num_threads(threads)
        model = None if dem is None else read_model(dem, loaded.env)
        decoding = CheckpointDecoder.of(loaded.env, loaded.checkpoint, model, allow_other_dem=allow_other_dem)
        problem = decoding.problem
        events = shotfiles.read(shots, in_format or shotfiles.guess_format(shots), problem.n_detectors, CHUNK)
        parts = (decoding.decode(part) for part in events)
        n = shotfiles.write(target, out_format or shotfiles.guess_format(target), problem.n_observables, parts)
    suffix = (
        f"; {decoding.n_unknown_edges} edges unknown to the network kept the priors of the model"
        if decoding.n_unknown_edges
        else ""
    )
    out.say(f"{target}: {n} shots decoded, {pluralize(problem.n_observables, 'observable')} each{suffix}")
    out.emit(
        {
            "out": str(target),
            "shots": n,
            "env": loaded.env.name,
            "unknown_edges": decoding.n_unknown_edges,
            "verified": loaded.verified,
        }
    )


@dataclass(frozen=True)
class _LoadedCheckpoint:
    """A checkpoint, its env, and whether it is a verified artifact."""

    checkpoint: Path
    env: EnvSpec
    verified: bool


def _load_checkpoint(
    checkpoint: Path, env_name: str | None, trust_code: bool, unverified: bool, exit_stack: ExitStack
) -> _LoadedCheckpoint:
    """Find file and env of a checkpoint; the code that it needs is in effect until `exit_stack` closes."""
    from autoqec.orchestrator.verified_artifact import require_verified
    from autoqec.store.files import load_env

    directory = checkpoint if checkpoint.is_dir() else checkpoint.parent
    try:
        layout, number = paths.parse_round_dir(directory)
    except UsageError as error:
        if checkpoint.is_dir():
            raise
        if env_name is None:
            message = "does not belong to a run, so its env must be named"
            raise UsageError(
                message, location=str(checkpoint), hint=f"autoqec decode {checkpoint} --env ENV …"
            ) from error
        return _LoadedCheckpoint(checkpoint, load_env(paths.env_file(env_name))[0], verified=False)
    path = layout.round(number).checkpoint if checkpoint.is_dir() else checkpoint
    modules_dir = _overlay_modules(exit_stack, layout, number, trust_code)
    if not unverified:
        require_verified(layout, number, path, modules_dir, override="add --unverified")
    env, _ = load_env(paths.env_file(env_name) if env_name else layout.env)
    return _LoadedCheckpoint(path, env, verified=not unverified)


def _overlay_modules(exit_stack: ExitStack, layout: RunLayout, number: int, trust_code: bool) -> Path | None:
    """Put the editable modules of the round in effect if its branch changed code; return their directory."""
    from autoqec.orchestrator.editable_modules import checked_out_modules

    modules_dir = exit_stack.enter_context(checked_out_modules(layout, number))
    if modules_dir is not None and not trust_code:
        message = f"the branch of round {number} changed code, which would run with all your permissions"
        raise UsageError(
            message, location=f"run {layout.run_id}", hint="review it with `git diff`, then add --trust-code"
        )
    if modules_dir is not None:
        from autoqec.decoders import overlay

        overlay.use_modules_dir(modules_dir)
    return modules_dir


def _check_target(shots: Path, target: Path) -> None:
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(
            "is not a file in an existing directory",
            location=str(target),
            hint=f"mkdir -p {target.parent}, or choose another file",
        )
    if target.exists() and shots.exists() and target.samefile(shots):
        raise UsageError("is the input file", location="--out", hint="choose another file")
