"""`autoqec diagnose`: causes of failed rounds, and a config to try."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli import llm_summary
from autoqec.cli.common import Output, options
from autoqec.errors import UsageError
from autoqec.reporting.diagnose import RoundDiagnosis, diagnose_round, diagnose_run
from autoqec.reporting.text import plain
from autoqec.store import atomic, layout
from autoqec.store.files import dump_config
from autoqec.store.layout import RoundLayout


@click.command("diagnose")
@click.argument("target", metavar="RUN_OR_ROUND")
@click.option("--write", type=click.Path(path_type=Path), help="Write the patched config of one round to this file.")
@llm_summary.model_option
@options
def command(target: str, write: Path | None, model: str | None, out: Output) -> None:
    """Find out why the rounds of a run, or one round, failed or gained nothing.

    RUN_OR_ROUND is the id or directory of a run, or the directory of a round.
    """
    llm_summary.check_model(model)
    diagnoses = _diagnose(target)
    if write is not None:
        _write(diagnoses, write)
    if not diagnoses:
        out.emit({"cause": None, "what": "no problems found"})
        out.say("No problems found.")
    for diagnosis in diagnoses:
        out.emit(diagnosis.dump())
        name = "The env" if diagnosis.round is None else f"Round {diagnosis.round}"
        out.say(f"{name}, {diagnosis.status}: {diagnosis.cause}. {plain(diagnosis.what, 600)}")
        if diagnosis.advice:
            out.say(f"   Try: {plain(diagnosis.advice)}")
        for key, (old, new) in (diagnosis.change or {}).items():
            out.say(f"   Change: {plain(f'{key}: {old} -> {new}')}")
        if diagnosis.see:
            out.say(f"   See: {plain(', '.join(diagnosis.see))}")
    llm_summary.summarize_findings(
        model, [diagnosis.dump() for diagnosis in diagnoses], "why rounds ended as they did", out
    )
    if write is not None:
        out.say(f"Patched config: {write}. Try it: autoqec run-round ENV {write} NEW_DIR")


def _diagnose(target: str) -> list[RoundDiagnosis]:
    directory = Path(target).resolve()
    number = directory.name.removeprefix("round_")
    round_layout = RoundLayout(directory, int(number) if number.isdigit() else 1)
    if not round_layout.metrics.exists() and number == directory.name:
        return diagnose_run(locate.run_layout(target))
    env = layout.RunLayout(directory.parent.parent.parent, directory.parent.name).env
    return [diagnose_round(round_layout, env.read_text(encoding="utf-8") if env.is_file() else None)]


def _write(diagnoses: list[RoundDiagnosis], target: Path) -> None:
    patched = [diagnosis for diagnosis in diagnoses if diagnosis.config is not None]
    if len(patched) != 1:
        what = f"{len(patched)} rounds have a patched config" if patched else "no config change is suggested"
        raise UsageError(
            what,
            location="--write",
            hint="autoqec diagnose ROUND_DIR --write FILE, for a round with a suggested change",
        )
    assert patched[0].config is not None  # selected above
    atomic.write_text(target, dump_config(patched[0].config))
