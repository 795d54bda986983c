"""`autoqec check-data`: compare recorded shots with their model, and decode them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoqec.cli.common import Output, options
from autoqec.errors import UsageError
from autoqec.extensions.recorded.commands.recorded_shots import diagnose, open_recorded, shown_progress
from autoqec.reporting.text import pluralize

if TYPE_CHECKING:
    import stim

    from autoqec.extensions.recorded.block_comparison import BlockEffect
    from autoqec.extensions.recorded.shots import RecordedShots
    from autoqec.qec.problem import Problem

BLOCKS = 40  # by default
MISPLACED = -1.0  # gain of predictions below which they may not be those of the shots


@click.command("check-data")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--manifest", type=click.Path(path_type=Path), help="Also compare the files with NAME.recorded.json.")
@click.option("--no-decode", is_flag=True, help="Diagnose only; do not estimate and decode.")
@click.option(
    "--train-shots", type=click.IntRange(1), help="First shots, from which a model is estimated; default: half of all."
)
@click.option(
    "--block-shots",
    type=click.IntRange(1),
    help=f"Successive shots that are one unit of the comparison; default: a {BLOCKS}th of the decoded shots.",
)
@click.option("--dem-out", type=click.Path(path_type=Path), help="File for the estimated detector error model.")
@options
def command(
    directory: Path,
    manifest: Path | None,
    no_decode: bool,
    train_shots: int | None,
    block_shots: int | None,
    dem_out: Path | None,
    out: Output,
) -> None:
    """Diagnose recorded shots that do not fit their circuit, and compare decoders on them.

    The error probabilities of the model are estimated from the detection events of the first shots; the other shots are
    decoded with the model as given and as estimated.

    DIRECTORY has a file recorded.yaml, or the layout of Google's public data sets. The exit status is 1 if a diagnosis
    shows that figures computed from the shots would be meaningless.
    """
    from autoqec.extensions.recorded.env import check_hashes, read_manifest

    recorded, problem, baselines = open_recorded(directory)
    if manifest is not None:
        with shown_progress(out) as progress:
            check_hashes(recorded, read_manifest(manifest), manifest.name, progress)
    checks = diagnose(recorded, problem, out)
    failed = [diagnosis.name for check in checks for diagnosis in check.diagnoses if diagnosis.error]
    shots = [0 if check.counts is None else check.counts.shots for check in checks]
    compared: dict[str, Any] = {}
    if not failed and not no_decode:
        trained = sum(shots) // 2 if train_shots is None else train_shots
        if trained >= sum(shots):
            message = f"leaves none of {sum(shots)} shots to decode"
            raise UsageError(message, location="--train-shots", hint="give a smaller number")
        size = block_shots or max((sum(shots) - trained) // BLOCKS, 1)
        if size > sum(shots) - trained:
            message = f"is more than the number of decoded shots, those after the first {trained}"
            raise UsageError(message, location="--block-shots", hint="give a smaller number")
        compared = _compare(_Data(recorded, problem, baselines, shots, trained), size, dem_out, out)
    out.emit(
        {
            "directory": str(directory),
            "shots": shots,
            "diagnoses": [[asdict(diagnosis) for diagnosis in check.diagnoses] for check in checks],
            **compared,
        }
    )
    if failed:
        click.get_current_context().exit(1)


@dataclass(frozen=True, eq=False)
class _Data:
    """Recorded shots with the problem of their model, the shots of each block, and how many train the estimate."""

    recorded: RecordedShots
    problem: Problem
    baselines: tuple[str, ...]
    shots: list[int]
    trained: int


def _compare(data: _Data, size: int, dem_out: Path | None, out: Output) -> dict[str, Any]:
    """Estimate a model, decode the other shots, print the gains; return the figures for --json."""
    from autoqec.extensions.recorded.decoding import compare
    from autoqec.qec.backends import make_backend
    from autoqec.qec.event_statistics import MAX_PAIR_DETECTORS

    problem, reference = data.problem, data.problem.env.plain
    names = dict.fromkeys((reference, *data.baselines))
    decoders = {name: make_backend(name, problem) for name in names}
    if dem_out is not None or problem.n_detectors <= MAX_PAIR_DETECTORS:
        estimated = _estimate(data, dem_out, out)
        decoders |= {f"{name}_estimated": make_backend(name, problem.with_dem(estimated)) for name in names}
    span = data.trained, sum(data.shots)
    with shown_progress(out) as progress:
        errors, effects = compare(data.recorded, data.shots, decoders, span, size, progress)
    decoded = next(iter(effects.values())).shots
    out.say(f"decoded {pluralize(decoded, 'shot')} in blocks of {size}; gains over {reference}, 95% under drift:")
    for name, count in sorted(errors.items(), key=lambda item: item[1]):
        effect = effects.get(name)
        gain = "" if effect is None or effect.relative is None else f", gain {_gain_text(effect)}"
        out.say(f"  {name:26} {count} errors, LER {count / decoded:.3e}{gain}")
    for name in data.recorded.layout.predicted_by:
        effect = effects.get(name)
        if name in decoders or effect is None:
            continue
        if effect.high < MISPLACED:
            message = f"the predictions of {name} have more than twice the errors of {reference}"
            out.note(f"warning: {message}: they may be those of other shots, in another order or inverted")
        elif effect.errors_candidate == 0 and effect.low > 0:
            message = f"the predictions of {name} have no errors, those of {reference} {effect.errors_reference}"
            out.note(f"warning: {message}: they may be the recorded flips; no gain over them can be measured")
    return {
        "train_shots": data.trained,
        "block_shots": size,
        "decoded_shots": decoded,
        "errors": errors,
        "gains": {name: asdict(effect) for name, effect in effects.items()},
    }


def _estimate(data: _Data, dem_out: Path | None, out: Output) -> stim.DetectorErrorModel:
    """Estimate a model from the first shots, and write it if asked."""
    from autoqec.extensions.recorded.estimation import estimate_dem
    from autoqec.extensions.recorded.shots import CHUNK
    from autoqec.store import atomic

    trained = data.trained
    with shown_progress(out) as progress:
        parts = data.recorded.span(data.shots, (0, trained), trained, CHUNK, progress)
        estimated = estimate_dem(data.problem, (part.detection_events for part in parts), trained, progress)
    out.note(f"estimated {pluralize(data.problem.n_mechanisms, 'error mechanism')} from {pluralize(trained, 'shot')}")
    if dem_out is not None:
        atomic.write_text(dem_out, f"{estimated}\n")
        out.say(f"{dem_out}: estimated detector error model")
    return estimated


def _gain_text(effect: BlockEffect) -> str:
    text = f"{effect.relative:+.1%} ({effect.low:+.1%} to {effect.high:+.1%})"
    if effect.blocks_too_short:
        text += f"; successive blocks are correlated ({effect.autocorrelation:.2f}): use more --block-shots"
    return text
