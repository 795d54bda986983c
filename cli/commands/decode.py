"""`autoqec decode`: a checkpoint on one's own shots."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli import paths
from autoqec.cli.common import Out, options
from autoqec.errors import InputError
from autoqec.reporting.text import counted

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
    trust_code: bool,
    out: Out,
) -> None:
    """Decode shots with CHECKPOINT, a round's directory or its checkpoint.pt.

    Detection events in, one predicted flip an observable out, in stim's formats. A model of the very same mechanisms
    moves the priors, as another p does; any other is refused unless --allow-other-dem: then mechanisms that both know
    are the net's, and the rest keep their own probabilities.
    """
    _check_target(shots, target)
    if allow_other_dem and dem is None:
        raise InputError("names no model", where="--allow-other-dem", mend="add --dem FILE")
    with ExitStack() as held:
        made = _found(checkpoint, env_name, trust_code, held)
        import torch

        from autoqec.decoders.decoding import CHUNK, Decoding, read_model
        from autoqec.qec import shotfiles

        torch.set_num_threads(1)
        model = None if dem is None else read_model(dem, made.env)
        decoding = Decoding.of(made.env, made.checkpoint, model, other=allow_other_dem)
        problem = decoding.problem
        events = shotfiles.read(shots, in_format or shotfiles.format_of(shots), problem.n_detectors, CHUNK)
        parts = (decoding.decode(part) for part in events)
        n = shotfiles.write(target, out_format or shotfiles.format_of(target), problem.n_observables, parts)
    kept = f"; {decoding.unknown} edges that the net does not know kept the model's priors" if decoding.unknown else ""
    out.say(f"{target}: {n} shots decoded, {counted(problem.n_observables, 'observable')} each{kept}")
    out.emit({"out": str(target), "shots": n, "env": made.env.name, "unknown_edges": decoding.unknown})


@dataclass(frozen=True)
class _Made:
    """A checkpoint and what it was made for."""

    checkpoint: Path
    env: EnvSpec


def _found(checkpoint: Path, env_name: str | None, trust_code: bool, held: ExitStack) -> _Made:
    """The checkpoint's file and env, and the code it needs mounted for as long as `held` lasts."""
    from autoqec.store.files import load_env

    directory = checkpoint if checkpoint.is_dir() else checkpoint.parent
    try:
        layout, number = paths.round_of(directory)
    except InputError as error:
        if checkpoint.is_dir():
            raise
        if env_name is None:
            what = "lies in no run, so the env it was trained on must be named"
            raise InputError(what, where=str(checkpoint), mend=f"autoqec decode {checkpoint} --env ENV …") from error
        return _Made(checkpoint, load_env(paths.env_file(env_name))[0])
    _mount(held, layout, number, trust_code)
    path = layout.round(number).checkpoint if checkpoint.is_dir() else checkpoint
    return _Made(path, load_env(paths.env_file(env_name) if env_name else layout.env)[0])


def _mount(held: ExitStack, layout: RunLayout, number: int, trust_code: bool) -> None:
    from autoqec.orchestrator.editable_modules import own_surface

    surface = held.enter_context(own_surface(layout, number))
    if surface is not None and not trust_code:
        what = f"round {number}'s branch has code of its own, which would run here with all your rights"
        raise InputError(what, where=f"run {layout.run_id}", mend="read it (`git diff`), then add --trust-code")
    if surface is not None:
        from autoqec.decoders import overlay as mounted

        mounted.mount(surface)


def _check_target(shots: Path, target: Path) -> None:
    if target.is_dir() or not target.parent.is_dir():
        raise InputError("is no place for a file", where=str(target), mend=f"mkdir -p {target.parent}, or name a file")
    if target.exists() and shots.exists() and target.samefile(shots):
        raise InputError("is the file of shots itself", where="--out", mend="name another file")
