"""`autoqec diagnose`: why rounds ended as they did, and the config to try instead."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec.cli import llm_summary, paths
from autoqec.cli.common import Out, options
from autoqec.errors import InputError
from autoqec.reporting.diagnose import Diagnosis
from autoqec.store import layout


@click.command("diagnose")
@click.argument("target", metavar="RUN_OR_ROUND")
@click.option("--write", type=click.Path(path_type=Path), help="Write the patched config of one round to this file.")
@llm_summary.model_option
@options
def command(target: str, write: Path | None, model: str | None, out: Out) -> None:
    """Root causes of the rounds of a run (its id or directory), or of one round (its directory)."""
    from autoqec.reporting.text import plain

    llm_summary.checked(model)
    found = _found(target)
    if write is not None:
        _write(found, write)
    if not found:
        out.emit({"cause": None, "what": "nothing is wrong here"})
        out.say("Nothing is wrong here.")
    for one in found:
        out.emit(one.dump())
        name = "The env" if one.round is None else f"Round {one.round}"
        out.say(f"{name}, {one.status}: {one.cause}. {plain(one.what, 600)}")
        if one.advice:
            out.say(f"   Try: {plain(one.advice)}")
        for key, (old, new) in (one.change or {}).items():
            out.say(f"   Change: {plain(f'{key}: {old} -> {new}')}")
        if one.see:
            out.say(f"   See: {plain(', '.join(one.see))}")
    llm_summary.tell(model, [one.dump() for one in found], "why rounds ended as they did", out)
    if write is not None:
        out.say(f"Patched config: {write}. Try it: autoqec run-round ENV {write} NEW_DIR")


def _found(target: str) -> list[Diagnosis]:
    from autoqec.reporting.diagnose import diagnose_round, diagnose_run

    directory = Path(target).resolve()
    number = directory.name.removeprefix("round_")
    place = layout.RoundLayout(directory, int(number) if number.isdigit() else 1)
    if not place.metrics.exists() and number == directory.name:
        return diagnose_run(paths.run_layout(target))
    env = layout.RunLayout(directory.parent.parent.parent, directory.parent.name).env
    return [diagnose_round(place, env.read_text(encoding="utf-8") if env.is_file() else None)]


def _write(found: list[Diagnosis], target: Path) -> None:
    from autoqec.store import atomic
    from autoqec.store.files import dump_config

    patched = [one for one in found if one.config is not None]
    if len(patched) != 1:
        what = f"{len(patched)} rounds have a config to try" if patched else "there is no config to try"
        raise InputError(what, where="--write", mend="name one round's directory that shows a change")
    assert patched[0].config is not None  # chosen so
    atomic.write_text(target, dump_config(patched[0].config))
