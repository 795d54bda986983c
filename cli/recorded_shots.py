"""Opening and diagnosing recorded shots, for `check-data` and `add-env --recorded`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.cli.common import Output
from autoqec.cli.env_defaults import SEED_BANDS, default_baselines
from autoqec.reporting.text import pluralize

if TYPE_CHECKING:
    from autoqec.extensions.recorded.check import BlockCheck
    from autoqec.extensions.recorded.progress import Reading
    from autoqec.extensions.recorded.shots import RecordedShots
    from autoqec.qec.problem import Problem

NAME = "recorded_shots"


def open_recorded(directory: Path) -> tuple[RecordedShots, Problem, tuple[str, ...]]:
    """Open recorded shots; return them with the problem of their model and the names of the baselines."""
    from autoqec.extensions.recorded.env import model_code
    from autoqec.extensions.recorded.shots import RecordedShots
    from autoqec.qec.env_summary import suggest_backend
    from autoqec.qec.problem import Problem
    from autoqec.store.files import env_from_data

    recorded = RecordedShots.open(directory)
    spec: dict[str, Any] = {"name": NAME, "code": model_code(recorded, Path()), "noise": {"model": "from_file"}}
    spec["seed_policy"] = SEED_BANDS
    location = str(directory / recorded.layout.model)
    backend = suggest_backend(env_from_data(spec, location=location, directory=Path(), hint="check the circuit"))
    spec |= {"backend": backend, "baselines": default_baselines(backend)}
    env = env_from_data(spec, location=location, directory=Path(), hint="check the circuit")
    return recorded, Problem.from_env(env), env.baselines


@contextmanager
def shown_reading(directory: Path, out: Output) -> Iterator[Reading]:
    """Show on the terminal how much of the shots in a directory is read; keep intermediate results until the end."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from autoqec.extensions.recorded.progress import Reading
    from autoqec.reporting.terminal import console

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    target = console(err=True)
    shown = target.is_interactive and not out.quiet
    redirect = sys.stdout.isatty()  # results go to the same terminal, or stay in the file that stdout is
    with Progress(*columns, console=target, transient=True, redirect_stdout=redirect, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        label = ""

        def on_read(now: str, done: int, total: int | None) -> None:
            nonlocal label
            if now != label:  # the remaining time is that of one file
                label = now
                bar.reset(task, description=now, total=total)
            bar.update(task, completed=done)

        with Reading.resumable(directory, on_read) as reading:
            yield reading


def diagnose(recorded: RecordedShots, problem: Problem, out: Output, reading: Reading) -> list[BlockCheck]:
    """Read all shots and print the diagnoses of each block; read predictions of other decoders if the shots fit.

    Raises:
        UsageError: A file is damaged, or disagrees with another in its shots.
    """
    from autoqec.extensions.recorded.check import check_blocks, describe_block
    from autoqec.extensions.recorded.diagnosis import MIN_SHOTS
    from autoqec.extensions.recorded.predictions import check_predictions

    total = len(recorded.layout.blocks)

    def on_block(index: int, check: BlockCheck) -> None:
        out.note(f"checked block {index + 1} of {total}")

    checks = check_blocks(recorded, problem, on_block, reading=reading)
    for index, check in enumerate(checks):
        shots = "not readable" if check.counts is None else pluralize(check.counts.shots, "shot")
        few = check.counts is not None and check.counts.shots < MIN_SHOTS
        fit = f", too few to compare with the model (less than {MIN_SHOTS})" if few else ", fits the model"
        state = "" if check.diagnoses else fit
        out.say(f"{describe_block(recorded.layout.blocks[index], index)}: {shots}{state}")
        for diagnosis in check.diagnoses:
            out.say(f"  {'error' if diagnosis.error else 'note'} {diagnosis.name}: {diagnosis.message}")
            out.say(f"    likely cause: {diagnosis.cause}")
    if not any(diagnosis.error for check in checks for diagnosis in check.diagnoses):
        shots_of_blocks = [0 if check.counts is None else check.counts.shots for check in checks]
        check_predictions(recorded, shots_of_blocks, reading=reading)
    return checks
