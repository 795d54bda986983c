"""`autoqec decode`: decode recorded shots with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from autoqec.cli.common import Output, options
from autoqec.contracts.env import CORRELATED
from autoqec.errors import UsageError
from autoqec.models import model_env, model_path
from autoqec.orchestrator.checkpoints import OpenCheckpoint, open_checkpoint
from autoqec.reporting.text import pluralize
from autoqec.system import machine

if TYPE_CHECKING:
    import numpy as np

    from autoqec.decoders.decoding import CheckpointDecoder
    from autoqec.decoders.windows import WindowedDecoder
    from autoqec.orchestrator.checkpoints import OpenCheckpoint

FORMATS = ("b8", "r8", "ptb64", "01", "hits", "dets")


@click.command("decode")
@click.argument("checkpoint", type=click.Path(path_type=Path), required=False)
@click.option(
    "--model", metavar="NAME", help="Verified model of the package, in place of CHECKPOINT; see autoqec models."
)
@click.option(
    "--in", "shots", type=click.Path(path_type=Path), required=True, help="Detection events in a format of stim."
)
@click.option(
    "--out", "target", type=click.Path(path_type=Path), required=True, help="File for predicted observable flips."
)
@click.option("--in-format", type=click.Choice(FORMATS), help="Default: by file extension, otherwise b8.")
@click.option("--out-format", type=click.Choice(FORMATS), help="Default: by file extension, otherwise b8.")
@click.option(
    "--env", "env_name", metavar="ENV", help="Env that the checkpoint was trained on; default: that of its run."
)
@click.option(
    "--dem", type=click.Path(path_type=Path), help="Error model of the shots (.dem or .stim); default: that of the env."
)
@click.option(
    "--allow-other-dem", is_flag=True, help="Accept a --dem with other error mechanisms, such as one of a device."
)
@click.option(
    "--window",
    type=click.IntRange(min=2),
    metavar="ROUNDS",
    help="Decode long experiments in windows of this many rounds; needs type `local`, and uses no gate.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Decode parts of the shots in parallel."
)
@click.option(
    "--latency",
    "latency_shots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also time the first N shots one by one, beside correlated matching.",
)
@click.option("--trust-code", is_flag=True, help="Run code that the branch of the round changed, outside the sandbox.")
@click.option("--unverified", is_flag=True, help="Also decode with a checkpoint that is not a verified artifact.")
@options
def command(
    checkpoint: Path | None,
    model: str | None,
    shots: Path,
    target: Path,
    in_format: str | None,
    out_format: str | None,
    env_name: str | None,
    dem: Path | None,
    allow_other_dem: bool,
    window: int | None,
    threads: int,
    latency_shots: int | None,
    trust_code: bool,
    unverified: bool,
    out: Output,
) -> None:
    """Decode shots with CHECKPOINT, a round directory or a checkpoint.pt, or with --model.

    Reads detection events and writes one predicted flip per observable, in formats of stim. Files of a round are
    compared with its verified artifact first. A --dem with the same error mechanisms changes their priors only; any
    other is rejected unless --allow-other-dem is given: then mechanisms of both models use the network, and the others
    keep the probabilities of the file. A checkpoint of type `local` also takes a --dem of another distance or number of
    rounds. --window needs less memory for many rounds.
    """
    _check_target(shots, target)
    _check_options(dem, window, latency_shots, allow_other_dem=allow_other_dem)
    from autoqec.decoders.threads import PART, check_threads, decode_parts

    check_threads(threads, "--threads")
    with _opened(checkpoint, model, env_name, trust_code=trust_code, unverified=unverified) as loaded:
        if not loaded.verified:
            out.note("warning: this checkpoint is not a verified artifact")
        from autoqec.decoders.decoding import CheckpointDecoder
        from autoqec.qec import shotfiles
        from autoqec.qec.weighted_mwpm import missing_extension

        shot_format = in_format or shotfiles.guess_format(shots)
        count_shots = partial(shotfiles.count_shots, shots, shot_format)
        decoders = _decoders(loaded, dem, window, threads, count_shots, allow_other_dem=allow_other_dem)
        decoding = decoders[0]
        problem = decoding.problem if isinstance(decoding, CheckpointDecoder) else decoding
        if (slower := missing_extension(loaded.env.backend)) is not None:
            out.note(f"warning: {slower}")
        if decoding.other_circuit:
            out.note("warning: the network was trained on another circuit; its gain there was not verified")
        events, mismatches = _checked(shotfiles.read(shots, shot_format, problem.n_detectors, PART), decoding, out)
        parts = decode_parts(decoders, events)
        n = shotfiles.write(target, out_format or shotfiles.guess_format(target), problem.n_observables, parts)
        latency = None
        if latency_shots is not None and n and isinstance(decoding, CheckpointDecoder):
            again = shotfiles.read(shots, shot_format, problem.n_detectors, PART)
            latency = _measure_latency(out, decoding, first_shots(again, latency_shots))
    unknown = decoding.n_unknown_edges
    suffix = f"; {unknown} edges unknown to the network kept the priors of the model" if unknown else ""
    out.say(f"{target}: {pluralize(n, 'shot')} decoded, {pluralize(problem.n_observables, 'observable')} each{suffix}")
    figures = {"shots": n, "env": loaded.env.name, "unknown_edges": unknown, "verified": loaded.verified}
    figures |= {"mismatches": mismatches}
    out.emit({"out": str(target), **figures, **({} if latency is None else {"latency": latency})})


def _decoders(
    loaded: OpenCheckpoint,
    dem: Path | None,
    window: int | None,
    threads: int,
    count_shots: Callable[[int], int | None],
    *,
    allow_other_dem: bool,
) -> list[CheckpointDecoder] | list[WindowedDecoder]:
    """Return the decoders of a checkpoint for the model in a file, or for that of its env, one per thread in use.

    `count_shots` returns the number of shots with so many detectors, if it is known.
    """
    from autoqec.decoders.decode_memory import decoding_size, require_decode_memory, require_window_memory
    from autoqec.decoders.decoding import CheckpointDecoder, check_fit, read_model
    from autoqec.decoders.threads import decoders_needed
    from autoqec.decoders.windows import WindowedDecoder
    from autoqec.qec.problem import Problem

    model = None if dem is None else read_model(dem, loaded.env)
    if window is None:
        check_fit(loaded.env, loaded.path, model)  # before the size of a long experiment is counted
    size = decoding_size(loaded.env, model)
    n_shots = count_shots(size.n_detectors)
    n_decoders = decoders_needed(threads, n_shots)
    if window is None:
        require_decode_memory(size, n_decoders, n_shots)
        of = CheckpointDecoder.of
        return [of(loaded.env, loaded.path, model, allow_other_dem=allow_other_dem) for _ in range(n_decoders)]
    require_window_memory(loaded.env, model, window, n_decoders, n_shots)
    model = model or Problem.from_env(loaded.env).dem
    return [WindowedDecoder(loaded.env, loaded.path, model, window) for _ in range(n_decoders)]


def _checked(
    parts: Iterator[np.ndarray], decoding: CheckpointDecoder | WindowedDecoder, out: Output
) -> tuple[Iterator[np.ndarray], list[str] | None]:
    """Warn if the shots do not fit the model; return all of their parts, and the names of what was found.

    None in place of the names: there are too few shots to tell.
    """
    from autoqec.decoders.shot_check import check_shots
    from autoqec.qec.diagnosis import describe_mismatch

    first = next(parts, None)
    found = None if first is None else check_shots(decoding, first)
    for each in found or []:
        out.note(f"warning: {describe_mismatch(each)}")
    names = None if found is None else [each.name for each in found]
    return (parts if first is None else chain([first], parts)), names


def _check_options(dem: Path | None, window: int | None, latency_shots: int | None, *, allow_other_dem: bool) -> None:
    if allow_other_dem and dem is None:
        raise UsageError("needs a model", location="--allow-other-dem", hint="add --dem FILE")
    for option, given in (("--latency", latency_shots is not None), ("--allow-other-dem", allow_other_dem)):
        if window is not None and given:
            raise UsageError(f"cannot be used with {option}", location="--window", hint=f"leave out {option}")


def first_shots(parts: Iterator[np.ndarray], count: int) -> np.ndarray:
    """Return the first `count` shots, or all if there are fewer; read no further part than needed."""
    taken: list[np.ndarray] = []
    for part in parts:
        taken.append(part[: count - sum(map(len, taken))])
        if sum(map(len, taken)) == count:
            break
    return np.concatenate(taken)


def _measure_latency(out: Output, decoding: CheckpointDecoder, detection_events: np.ndarray) -> dict[str, Any]:
    from autoqec.decoders.latency import compare_latency

    processor = machine.snapshot()["cpu"]["model"]
    found = compare_latency(decoding, detection_events)
    out.say(f"latency of {pluralize(len(detection_events), 'shot')} on {processor}, one by one:")
    for name, latency in found.items():
        reference = found.get(CORRELATED)
        ratio = "" if reference is None else f", {latency.batch_us_per_shot / reference.batch_us_per_shot:.2f} x"
        out.say(
            f"  {name}: p50 {latency.p50_us:.1f} us, p99 {latency.p99_us:.1f} us, p99.9 {latency.p999_us:.1f} us; "
            f"as one batch {latency.batch_us_per_shot:.2f} us of CPU time per shot{ratio}"
        )
    return {"processor": processor, **{name: asdict(latency) for name, latency in found.items()}}


def _check_target(shots: Path, target: Path) -> None:
    if target.is_dir():
        raise UsageError("is a directory", location=str(target), hint=f"name a file in it: --out {target / 'out.b8'}")
    if not target.parent.is_dir():
        raise UsageError(
            "is not a file in an existing directory",
            location=str(target),
            hint=f"mkdir -p {target.parent}, or choose another file",
        )
    if target.exists() and not target.is_file():
        raise UsageError("is not a regular file", location=str(target), hint="write to a file, then `cat` it")
    if target.exists() and shots.exists() and target.samefile(shots):
        raise UsageError("is the input file", location="--out", hint="choose another file")


def _opened(
    checkpoint: Path | None, model: str | None, env_name: str | None, *, trust_code: bool, unverified: bool
) -> AbstractContextManager[OpenCheckpoint]:
    if (checkpoint is None) == (model is None) or (model is not None and env_name is not None):
        message = "name a CHECKPOINT, with or without --env, or a --model"
        raise UsageError(message, hint="autoqec models lists the models of the package")
    if model is not None:
        return nullcontext(OpenCheckpoint(model_path(model), model_env(model), verified=True))
    return open_checkpoint(checkpoint or Path(), env_name, trust_code=trust_code, unverified=unverified)
