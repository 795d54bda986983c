"""`autoqec memory`: show or extend a file with rounds of several runs."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import HistoryRow
from autoqec.errors import UsageError
from autoqec.extensions.language_models.contracts import Lesson
from autoqec.reporting.text import pluralize


@click.command("memory")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--import",
    "runs",
    multiple=True,
    metavar="RUN",
    help="Add the rounds of this run: its id, directory or history.jsonl. Repeatable.",
)
@click.option("--env", help="Show the notes that a language model gets for this env.")
@options
def command(file: Path, runs: tuple[str, ...], env: str | None, out: Output) -> None:
    """Show FILE, a memory for `autoqec run --memory FILE`.

    With --import, add the rounds of earlier runs first; rounds that FILE already has are skipped.
    """
    from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory
    from autoqec.store.files import load_env

    if not runs and not file.exists():
        raise UsageError("file not found", location=str(file), hint=f"autoqec memory {file} --import RUN")
    loaded_runs = [_load_run(run) for run in runs]  # every run is read before anything is written
    learned = CrossRunMemory(file)
    for run_id, spec, rows, lessons in loaded_runs:
        added = learned.learn(run_id, spec, rows, lessons)
        out.emit({"event": "imported", "run": run_id, "rounds": added})
        out.say(f"{pluralize(added, 'round')} of run {run_id} added")
    notes = learned.notes(load_env(locate.env_file(env))[0]) if env else []
    out.emit({"event": "memory", "file": str(file), "type": learned.memory.config.type, "entries": len(learned),
              "notes": notes})  # fmt: skip
    out.say(f"{file}: {len(learned)} entries, type {learned.memory.config.type}")
    for note in notes:
        out.say(f"  {note}")


def _load_run(run: str) -> tuple[str, EnvSpec, list[HistoryRow], list[Lesson]]:
    """Return id, env, rows and lessons of a run, given by id or path."""
    from autoqec.extensions.language_models.roles.notebook import current_lessons
    from autoqec.store.files import parse_env, read_text
    from autoqec.store.history import History
    from autoqec.store.layout import RunLayout

    path = Path(run).resolve()
    directory = path.parent if path.is_file() else path
    layout = RunLayout(directory.parent.parent, directory.name) if directory.is_dir() else locate.run_layout(run)
    if not layout.history.is_file():
        raise UsageError(
            "is not a run with a history.jsonl", location=run, hint="give the id of a run, or its directory runs/RUN"
        )
    text = read_text(layout.env, what="the run's env", hint=f"put the env that the run was made for at {layout.env}")
    spec = parse_env(text, location=str(layout.env))
    return layout.run_id, spec, History(layout).rows(), current_lessons(layout.notebook)
