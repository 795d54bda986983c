"""`autoqec decode`: a checkpoint on one's own shots."""

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
@click.option("--in", "shots", type=click.Path(path_type=Path), required=True, help="Detection events, as stim writes.")
@click.option("--out", "target", type=click.Path(path_type=Path), required=True, help="Predicted observables.")
@click.option("--in-format", type=click.Choice(FORMATS), help="Default: by the file's ending, else b8.")
@click.option("--out-format", type=click.Choice(FORMATS), help="Default: by the file's ending, else b8.")
@click.option("--env", "env_name", metavar="ENV", help="What it was trained on; default: its run's env.")
@click.option("--dem", type=click.Path(path_type=Path), help="Model of the shots (.dem or .stim); default: the env's.")
@click.option("--allow-other-dem", is_flag=True, help="Let --dem have other mechanisms, as a device's model has.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the network.")
@click.option(
    "--trust-code", is_flag=True, help="Run code that the round's branch wrote, here and outside the sandbox."
)
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
    out: Output,
) -> None:
    """Decode shots with CHECKPOINT, a round's directory or its checkpoint.pt.

    Detection events in, one predicted flip an observable out, in stim's formats. A model of the very same mechanisms
    moves the priors, as another p does; any other is refused unless --allow-other-dem: then mechanisms that both know
    are the net's, and the rest keep their own probabilities.
    """
    _check_target(shots, target)
    if allow_other_dem and dem is None:
        raise UsageError("names no model", location="--allow-other-dem", hint="add --dem FILE")
    if threads > cpu_count():
        raise UsageError(f"{threads} threads on {cpu_count()} cores", location="--threads", hint="use fewer threads")
    with ExitStack() as exit_stack:
        loaded = _load_checkpoint(checkpoint, env_name, trust_code, exit_stack)
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
        f"; {decoding.n_unknown_edges} edges that the net does not know kept the model's priors"
        if decoding.n_unknown_edges
        else ""
    )
    out.say(f"{target}: {n} shots decoded, {pluralize(problem.n_observables, 'observable')} each{suffix}")
    out.emit({"out": str(target), "shots": n, "env": loaded.env.name, "unknown_edges": decoding.n_unknown_edges})


@dataclass(frozen=True)
class _LoadedCheckpoint:
    """A checkpoint and what it was made for."""

    checkpoint: Path
    env: EnvSpec


def _load_checkpoint(
    checkpoint: Path, env_name: str | None, trust_code: bool, exit_stack: ExitStack
) -> _LoadedCheckpoint:
    """The checkpoint's file and env, and the code it needs mounted for as long as `held` lasts."""
    from autoqec.store.files import load_env

    directory = checkpoint if checkpoint.is_dir() else checkpoint.parent
    try:
        layout, number = paths.parse_round_dir(directory)
    except UsageError as error:
        if checkpoint.is_dir():
            raise
        if env_name is None:
            message = "lies in no run, so the env it was trained on must be named"
            raise UsageError(
                message, location=str(checkpoint), hint=f"autoqec decode {checkpoint} --env ENV …"
            ) from error
        return _LoadedCheckpoint(checkpoint, load_env(paths.env_file(env_name))[0])
    _overlay_modules(exit_stack, layout, number, trust_code)
    path = layout.round(number).checkpoint if checkpoint.is_dir() else checkpoint
    return _LoadedCheckpoint(path, load_env(paths.env_file(env_name) if env_name else layout.env)[0])


def _overlay_modules(exit_stack: ExitStack, layout: RunLayout, number: int, trust_code: bool) -> None:
    from autoqec.orchestrator.editable_modules import checked_out_modules

    surface = exit_stack.enter_context(checked_out_modules(layout, number))
    if surface is not None and not trust_code:
        message = f"round {number}'s branch has code of its own, which would run here with all your rights"
        raise UsageError(message, location=f"run {layout.run_id}", hint="read it (`git diff`), then add --trust-code")
    if surface is not None:
        from autoqec.decoders import overlay as mounted

        mounted.use_modules_dir(surface)


def _check_target(shots: Path, target: Path) -> None:
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(
            "is no place for a file", location=str(target), hint=f"mkdir -p {target.parent}, or name a file"
        )
    if target.exists() and shots.exists() and target.samefile(shots):
        raise UsageError("is the file of shots itself", location="--out", hint="name another file")
