"""Comparison of `circuit_ideal.stim` with the model of the shots, in the layout of Google's public data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import stim

from autoqec.errors import UsageError
from autoqec.qec.codes import Source

IDEAL = "circuit_ideal.stim"
PROBES = 256  # random measurements; a detector that compares others differs in each with probability 1/2
LISTED = 8
HINT = "copy both circuits of these shots here, or write recorded.yaml with the right one as `model`"


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
            raise UsageError(message, location=str(path), hint=HINT)
    if isinstance(model, stim.Circuit) and (differing := _differing(ideal, model)):
        listed = ", ".join(differing[:LISTED])
        more = f" and {len(differing) - LISTED} more" if len(differing) > LISTED else ""
        message = f"contradicts {name}: from the same measurements it computes other values of {listed}{more}"
        raise UsageError(message, location=str(path), hint=HINT)


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
