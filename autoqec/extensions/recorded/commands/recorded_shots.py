"""Opening and diagnosing recorded shots for `check-data`, and `add-env --recorded`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoqec.cli.common import Output
from autoqec.cli.env_defaults import SEED_BANDS, default_baselines
from autoqec.cli.env_noise import noise_config
from autoqec.cli.new_env import EnvOptions, NewEnv
from autoqec.reporting.text import pluralize

if TYPE_CHECKING:
    from autoqec.contracts.env import EnvSpec
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


def _create(new_env: NewEnv) -> None:
    """Check recorded shots; write the env with its manifest and estimated model, or none of them."""
    from autoqec.extensions.recorded.decoding import baseline_names
    from autoqec.extensions.recorded.env import manifest_path_of, require_fit, write_models
    from autoqec.store.files import load_env

    directory, path, out = new_env.options["recorded"], new_env.path, new_env.out
    noise = noise_config(new_env.options, NAME)
    recorded, problem, _ = open_recorded(directory)
    predicted, existed = baseline_names(recorded), path.exists()
    checks = diagnose(recorded, problem, out)
    require_fit(checks, directory)
    counts = tuple(0 if check.counts is None else check.counts.shots for check in checks)
    try:
        with shown_progress(out) as progress:
            division = (new_env.options["block_shots"], new_env.options["candidates"])
            code = write_models(recorded, problem, counts, path, *division, progress)
        fields = code.model_dump(exclude_none=True, exclude={"manifest", "text", "estimated"})
        new_env.write(fields, noise, (*code.compared, *predicted))
    except BaseException:
        if not existed:
            for written in (manifest_path_of(path), path.with_name(f"{path.stem}.estimated.dem")):
                written.unlink(missing_ok=True)
        raise
    out.say(f"{manifest_path_of(path)}: hashes of {pluralize(len(recorded.names), 'file')} of recorded shots")
    out.say(f"{path.stem}.estimated.dem: model estimated from the training shots")
    env = load_env(path)[0]
    if env.predicted_by:
        named = ", ".join(name for name in predicted if name in env.baselines)
        out.say(f"predictions among the baselines, which a verified gain must beat: {named}")
        _warn_of_predictions_without_errors(recorded, env, out)


def _warn_of_predictions_without_errors(recorded: RecordedShots, env: EnvSpec, out: Output) -> None:
    from autoqec.contracts.env import PREDICTED
    from autoqec.extensions.recorded.code import RecordedShotsCode
    from autoqec.extensions.recorded.decoding import without_errors
    from autoqec.extensions.recorded.split import Split

    code = RecordedShotsCode.of(env)
    visible = 0, Split.of(code).validation[1]  # sealed shots are not scored before they are tested on
    for name in without_errors(recorded, code.files.shots, visible, env.predicted_by):
        message = f"{PREDICTED}{name} makes no errors on the {visible[1]} training and validation shots"
        out.note(
            f"warning: {message}: no gain over it can be shown; if its files hold the recorded flips, remove them, or "
            "choose --baselines"
        )


ENV_OPTIONS = EnvOptions(
    (
        click.Option(
            ["--recorded"],
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Directory of recorded shots, whose circuit becomes the code; the shots are checked against it.",
        ),
        click.Option(
            ["--block-shots"],
            type=click.IntRange(1),
            help="With --recorded: successive shots that are one unit of the test; default: 20 blocks per candidate.",
        ),
        click.Option(
            ["--candidates"],
            type=click.IntRange(1, 100),
            help="With --recorded: candidates among which the sealed test blocks are divided; default: 4.",
        ),
    ),
    _create,
)
