"""`autoqec check-data`: compare recorded shots with their model, and decode them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli.common import Output, options
from autoqec.cli.recorded_shots import diagnose, open_recorded

if TYPE_CHECKING:
    from autoqec.qec.problem import Problem
    from autoqec.qec.recorded.shots import RecordedShots


@click.command("check-data")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--manifest", type=click.Path(path_type=Path), help="Also compare the files with NAME.recorded.json.")
@click.option("--no-decode", is_flag=True, help="Diagnose only; do not decode all shots.")
@options
def command(directory: Path, manifest: Path | None, no_decode: bool, out: Output) -> None:
    """Diagnose recorded shots that do not fit their circuit, and decode them with matching.

    DIRECTORY has a file recorded.yaml, or the layout of Google's public data sets. The exit status is 1 if a diagnosis
    shows that figures computed from the shots would be meaningless.
    """
    from autoqec.qec.recorded.env import check_manifest

    recorded, problem, baselines = open_recorded(directory)
    if manifest is not None:
        check_manifest(recorded, manifest)
    checks = diagnose(recorded, problem, out)
    failed = [diagnosis.name for check in checks for diagnosis in check.diagnoses if diagnosis.error]
    errors = {} if failed or no_decode else decode(recorded, problem, baselines, out)
    out.emit(
        {
            "directory": str(directory),
            "shots": [0 if check.counts is None else check.counts.shots for check in checks],
            "diagnoses": [[asdict(diagnosis) for diagnosis in check.diagnoses] for check in checks],
            "errors": errors,
        }
    )
    if failed:
        click.get_current_context().exit(1)


def decode(recorded: RecordedShots, problem: Problem, baselines: tuple[str, ...], out: Output) -> dict[str, list[int]]:
    """Decode all shots with the baselines; print and return the errors of each decoder in each block."""
    from autoqec.qec.backends import make_backend
    from autoqec.qec.recorded.decoding import wrong_shots

    decoders = {name: make_backend(name, problem) for name in dict.fromkeys((problem.env.plain, *baselines))}
    errors: dict[str, list[int]] = {}
    shots: dict[str, int] = {}
    for index, block in enumerate(recorded.layout.blocks):
        for part in wrong_shots(recorded, block, decoders):
            for name, wrong in part.items():
                counts = errors.setdefault(name, [0] * len(recorded.layout.blocks))
                counts[index] += int(wrong.sum())
                shots[name] = shots.get(name, 0) + len(wrong)
        out.note(f"decoded block {index + 1} of {len(recorded.layout.blocks)}")
    for name, counts in errors.items():
        out.say(f"{name}: {sum(counts)} errors in {shots[name]} shots, LER {sum(counts) / max(shots[name], 1):.3e}")
    return errors
