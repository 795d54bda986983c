"""Finds recorded shots and their model in a directory, by `recorded.yaml` or the layout of Google's data sets."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import stim
from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.errors import UsageError
from autoqec.extensions.recorded.code import RecordedBlock, RecordedLayout
from autoqec.qec.codes import Source
from autoqec.store.files import load_yaml

PLAIN_LAYOUT = "recorded.yaml"
FORMAT_ORDER = ("b8", "01", "r8", "ptb64", "hits", "dets")
PREDICTED_PREFIX = "obs_flips_predicted_by_"
HINT = "write recorded.yaml: docs/contracts/recorded.md"
IDEAL = "circuit_ideal.stim"
IDEAL_HINT = "copy both circuits of these shots here, or write recorded.yaml with the right one as `model`"
PROBES = 256  # random measurements; a detector that compares others differs in each with probability 1/2
LISTED = 8


def find_layout(directory: Path) -> RecordedLayout:
    """Read a directory's `recorded.yaml`, or recognize the layout of Google's public data sets.

    Layouts: https://doi.org/10.5281/zenodo.6804040 (one file per decoder's predictions) and
    https://doi.org/10.5281/zenodo.13273331 (a folder `decoding_results`).

    Raises:
        UsageError: The directory has neither layout, or files of it are missing.
    """
    if not directory.is_dir():
        raise UsageError("is not a directory", location=str(directory), hint="give the directory of the shot files")
    plain = directory / PLAIN_LAYOUT
    layout = _plain_layout(plain) if plain.is_file() else _google_layout(directory)
    check_files(directory, layout)
    return layout


def check_files(directory: Path, layout: RecordedLayout) -> None:
    """Raise UsageError if a file of the layout is missing, or lies outside the directory."""
    for name in (layout.model, *(name for block in layout.blocks for name in block.files)):
        path = directory / name
        if not path.is_file():
            raise UsageError("is not a file", location=str(path), hint=f"correct {PLAIN_LAYOUT}, or copy the file here")
        if not path.resolve().is_relative_to(directory.resolve()):
            raise UsageError("is outside the directory of the shots", location=str(path), hint="move the file there")


def _plain_layout(path: Path) -> RecordedLayout:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", location=str(path), hint="save it as UTF-8 text") from error
    try:
        layout = RecordedLayout.model_validate(load_yaml(text, location=str(path)))
    except ValidationError as error:
        hint = "correct it (docs/contracts/recorded.md); text that looks like a number needs quotes"
        raise UsageError(first_validation_error(error), location=str(path), hint=hint) from error
    _check_times(layout, path)
    return layout


def _check_times(layout: RecordedLayout, path: Path) -> None:
    """Raise UsageError if blocks are not in the order of their times: the division by time relies on it."""
    latest: tuple[int, datetime] | None = None
    for index, block in enumerate(layout.blocks):
        if block.time is None:
            continue
        try:
            time = datetime.fromisoformat(block.time)
        except ValueError as error:
            message, hint = f"`time` {block.time!r} is not in ISO 8601", "write it like 2026-01-31T10:00:00Z"
            raise UsageError(message, location=f"{path}, block {index}", hint=hint) from error
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        if latest is not None and time < latest[1]:
            message, hint = f"was recorded before block {latest[0]}", "list the blocks in the order of time"
            raise UsageError(message, location=f"{path}, block {index}", hint=hint)
        latest = index, time


def _google_layout(directory: Path) -> RecordedLayout:
    model = _model_file(directory)
    events, observables = _shot_file(directory, "detection_events"), _shot_file(directory, "obs_flips_actual")
    measurements = _shot_file(directory, "measurements")
    if model is None or (measurements is None and (events is None or observables is None)):
        found = sorted({path.parent.name for path in directory.glob("*/detection_events.*")})
        message = f"has neither {PLAIN_LAYOUT} nor circuit_noisy.stim with detection_events and obs_flips_actual"
        hint = f"give one of its folders, for example {directory / found[0]}" if found else HINT
        raise UsageError(message, location=str(directory), hint=hint)
    if events is None or observables is None:
        events = observables = None
    metadata, described = _metadata(directory)
    block = RecordedBlock(
        detection_events=events,
        observables=observables,
        measurements=measurements,
        sweep_bits=_shot_file(directory, "sweep_bits") or _shot_file(directory, "sweep"),
        predictions=_predictions(directory),
        device=_text(metadata, "device", "processor"),
        time=_text(metadata, "time", "acquisition_time", "date"),
        basis=_text(metadata, "basis"),
        patch=_text(metadata, "patch", "center", "location"),
    )
    rounds = metadata.get("rounds", metadata.get("num_rounds", metadata.get("cycles", 1)))
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        message, hint = f"`rounds` is {rounds!r}, not a whole number of 1 or more", f"correct {described.name}"
        raise UsageError(message, location=str(described), hint=hint)
    return RecordedLayout(model=model, rounds=rounds, blocks=(block,))


def _model_file(directory: Path) -> str | None:
    """Return the noisy circuit, or else another model that has error probabilities."""
    noisy = sorted(path.name for path in directory.glob("circuit_noisy*.stim"))
    names = [*noisy, *sorted(path.name for path in directory.glob("*.dem")), "circuit.stim", "circuit_ideal.stim"]
    return next((name for name in names if (directory / name).is_file()), None)


def _shot_file(directory: Path, stem: str) -> str | None:
    return next((f"{stem}.{ending}" for ending in FORMAT_ORDER if (directory / f"{stem}.{ending}").is_file()), None)


def _predictions(directory: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(directory.glob(f"{PREDICTED_PREFIX}*")):
        found[path.stem.removeprefix(PREDICTED_PREFIX)] = path.name
    for path in sorted(directory.glob("decoding_results/*/obs_flips_predicted.*")):
        found[path.parent.name] = path.relative_to(directory).as_posix()
    return found


def _metadata(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return the metadata of a directory, {} if there are none, and their file."""
    for name in ("properties.yml", "properties.yaml", "metadata.json"):
        path = directory / name
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
                data = json.loads(text) if path.suffix == ".json" else load_yaml(text, location=str(path))
            except ValueError as error:
                raise UsageError(f"cannot be read: {error}", location=str(path), hint=f"correct {name}") from error
            return (data if isinstance(data, dict) else {}), path
    return {}, directory


def _text(metadata: dict[str, Any], *keys: str) -> str | None:
    return next((str(metadata[key]) for key in keys if metadata.get(key) is not None), None)


def check_ideal(model: Source, name: str, directory: Path) -> None:
    """Check that the ideal circuit in a directory, if there is one, defines the detectors of the model.

    A circuit must have the same measurements, and compute the same detection events and observable flips from them.
    Of a detector error model the numbers of detectors and observables are compared. Noise, and the way in which gates
    are written, may differ.

    Args:
        model: The circuit or detector error model of the shots.
        name: Its file.
        directory: The directory.

    Raises:
        UsageError: The ideal circuit cannot be read, its detectors are not deterministic, or it contradicts the model.
    """
    path = directory / IDEAL
    if name == IDEAL or not path.is_file():
        return
    ideal = read_model(path)
    assert isinstance(ideal, stim.Circuit)
    counted = ["num_detectors", "num_observables"]
    if isinstance(model, stim.Circuit):
        counted.append("num_measurements")
        if model.num_sweep_bits and ideal.num_sweep_bits:  # an ideal circuit may be that of one initial state
            counted.append("num_sweep_bits")
    for attribute in counted:
        found, expected = getattr(ideal, attribute), getattr(model, attribute)
        if found != expected:
            what = attribute.removeprefix("num_").replace("_", " ")
            message = f"contradicts {name}: it has {found} {what}, {name} has {expected}"
            raise UsageError(message, location=str(path), hint=IDEAL_HINT)
    if isinstance(model, stim.Circuit) and (differing := _differing(ideal, model)):
        listed = ", ".join(differing[:LISTED])
        more = f" and {len(differing) - LISTED} more" if len(differing) > LISTED else ""
        message = f"contradicts {name}: from the same measurements it computes other values of {listed}{more}"
        raise UsageError(message, location=str(path), hint=IDEAL_HINT)


def read_model(path: Path) -> Source:
    """Read a circuit (.stim) whose detectors are deterministic without noise, or a detector error model.

    Raises:
        UsageError: stim cannot read it, or a detector is not deterministic.
    """
    try:
        reader = stim.Circuit if path.suffix == ".stim" else stim.DetectorErrorModel
        source: Source = reader.from_file(path)
    except (ValueError, IndexError, OSError) as error:
        message = f"stim cannot read this model ({str(error).strip().splitlines()[0]})"
        raise UsageError(message, location=str(path), hint="check the file with `stim analyze_errors`") from error
    if isinstance(source, stim.Circuit):
        _check_deterministic(source, path)
    return source


def _check_deterministic(circuit: stim.Circuit, path: Path) -> None:
    try:
        circuit.without_noise().detector_error_model()
    except ValueError as error:
        raise UsageError(
            "a detector or observable of the circuit without noise is not deterministic",
            location=str(path),
            hint="check DETECTOR and OBSERVABLE_INCLUDE with `stim analyze_errors --in FILE`",
        ) from error


def _differing(first: stim.Circuit, second: stim.Circuit) -> list[str]:
    """Return the detectors and observables that two circuits compute differently from the same measurements."""
    rng = np.random.default_rng(1)
    measurements = rng.random((PROBES, first.num_measurements)) < 0.5
    swept = first.num_sweep_bits and second.num_sweep_bits
    sweep = rng.random((PROBES, first.num_sweep_bits)) < 0.5 if swept else None
    found = [
        circuit.compile_m2d_converter().convert(measurements=measurements, sweep_bits=sweep, separate_observables=True)
        for circuit in (first, second)
    ]
    events, flips = ((one != other).any(0) for one, other in zip(*found, strict=True))
    return [f"D{index}" for index in np.flatnonzero(events)] + [f"L{index}" for index in np.flatnonzero(flips)]
