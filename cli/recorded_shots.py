"""Opening and diagnosing recorded shots, for `check-data` and `add-env --recorded`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.cli.common import Output
from autoqec.cli.env_defaults import SEED_BANDS, default_baselines
from autoqec.reporting.text import pluralize

if TYPE_CHECKING:
    from autoqec.qec.problem import Problem
    from autoqec.qec.recorded.check import BlockCheck
    from autoqec.qec.recorded.shots import RecordedShots

NAME = "recorded_shots"


def open_recorded(directory: Path) -> tuple[RecordedShots, Problem, tuple[str, ...]]:
    """Open recorded shots; return them with the problem of their model and the names of the baselines."""
    from autoqec.qec.env_summary import suggest_backend
    from autoqec.qec.problem import Problem
    from autoqec.qec.recorded.env import model_code
    from autoqec.qec.recorded.shots import RecordedShots
    from autoqec.store.files import env_from_data

    recorded = RecordedShots.open(directory)
    spec: dict[str, Any] = {"name": NAME, "code": model_code(recorded, Path()), "noise": {"model": "from_file"}}
    spec["seed_policy"] = SEED_BANDS
    location = str(directory / recorded.layout.model)
    backend = suggest_backend(env_from_data(spec, location=location, directory=Path(), hint="check the circuit"))
    spec |= {"backend": backend, "baselines": default_baselines(backend)}
    env = env_from_data(spec, location=location, directory=Path(), hint="check the circuit")
    return recorded, Problem.from_env(env), env.baselines


def diagnose(recorded: RecordedShots, problem: Problem, out: Output) -> list[BlockCheck]:
    """Read all shots and print the diagnoses of each block."""
    from autoqec.qec.recorded.check import check_blocks, describe_block

    total = len(recorded.layout.blocks)
    checks = check_blocks(recorded, problem, lambda index, check: out.note(f"checked block {index + 1} of {total}"))
    for index, check in enumerate(checks):
        shots = "not readable" if check.counts is None else pluralize(check.counts.shots, "shot")
        state = "" if check.diagnoses else ", fits the model"
        out.say(f"{describe_block(recorded.layout.blocks[index], index)}: {shots}{state}")
        for diagnosis in check.diagnoses:
            out.say(f"  {'error' if diagnosis.error else 'note'} {diagnosis.name}: {diagnosis.message}")
            out.say(f"    likely cause: {diagnosis.cause}")
    return checks
