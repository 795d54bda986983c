"""Opening and diagnosing recorded shots, for `check-data` and `add-env --recorded`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.cli.common import Output
from autoqec.cli.env_defaults import SEED_BANDS, default_baselines
from autoqec.reporting.text import pluralize

if TYPE_CHECKING:
    from autoqec.extensions.recorded.check import BlockCheck
    from autoqec.extensions.recorded.shots import Progress, RecordedShots
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
def shown_progress(out: Output) -> Iterator[Progress]:
    """Show on a terminal how much was read; print nothing inside, since it would be written across it."""
    from autoqec.contracts.events import Event, ShotsRead
    from autoqec.extensions.recorded.shots import Progress
    from autoqec.reporting.terminal import console

    target = console(err=True)
    if out.quiet or not target.is_interactive:
        yield Progress()
        return
    with target.status("reading recorded shots") as status:

        def show(event: Event) -> None:
            if isinstance(event, ShotsRead):
                status.update(event.what + (f" {100 * event.done // event.total}%" if event.total else ""))

        yield Progress(show)


def diagnose(recorded: RecordedShots, problem: Problem, out: Output) -> list[BlockCheck]:
    """Read all shots and print the diagnoses of each block; read predictions of other decoders if the shots fit.

    Raises:
        UsageError: A file is damaged, or disagrees with another in its shots.
    """
    from autoqec.extensions.recorded.check import check_blocks, describe_block
    from autoqec.extensions.recorded.decoding import check_predictions
    from autoqec.qec.diagnosis import MIN_SHOTS

    with shown_progress(out) as progress:
        checks = check_blocks(recorded, problem, progress=progress)
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
        with shown_progress(out) as progress:
            check_predictions(recorded, shots_of_blocks, progress=progress)
    return checks
