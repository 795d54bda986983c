"""Finding recorded shots in a directory: `recorded.yaml`, or the layout of Google's public data sets."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.recorded import RecordedBlock, RecordedLayout
from autoqec.errors import UsageError
from autoqec.store.files import load_yaml

PLAIN_LAYOUT = "recorded.yaml"
FORMAT_ORDER = ("b8", "01", "r8", "ptb64", "hits", "dets")
PREDICTED_PREFIX = "obs_flips_predicted_by_"
HINT = "write recorded.yaml: docs/contracts/recorded.md"


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
