"""Faults planted into recorded shots, each with the name that its diagnosis must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoqec.contracts.env import EnvSpec
from autoqec.qec.diagnosis import known_orders, layers
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack, sample
from tests.support.envs import repetition, surface
from tests.support.recorded import unpacked

SHOTS = 6000
# The model that the shots are compared with, and the env that the "device" follows.
DEVICES: dict[str, tuple[EnvSpec, EnvSpec]] = {
    "d3z": (surface(3, 0.01), surface(3, 0.007)),
    "d3x": (surface(3, 0.008, "x", 5), surface(3, 0.012, "x", 5)),
    "d5z": (surface(5, 0.008), surface(5, 0.006)),
    "d5x": (surface(5, 0.006, "x", 4), surface(5, 0.006, "x", 4)),
    "rep5": (repetition(5, 0.02), repetition(5, 0.03)),
}


@dataclass(frozen=True)
class Planted:
    """One damaged recording.

    Attributes:
        label: What was done.
        name: Name of the diagnosis that must be given.
        model: The model that the shots are checked against.
        shots: The damaged shots.
    """

    label: str
    name: str
    model: Problem
    shots: Shots


@lru_cache(maxsize=16)
def device(key: str, seed: int = 11) -> tuple[Problem, Shots]:
    model, source = (Problem.from_env(env) for env in DEVICES[key])
    return model, sample(source, SHOTS, seed)


def planted() -> Iterator[Planted]:
    """Yield damaged recordings of every device."""
    for key in DEVICES:
        model, shots = device(key)
        events = unpacked(shots, model.n_detectors)
        for label, name, bits in _damaged_events(model, events):
            yield Planted(f"{key}: {label}", name, model, Shots(pack(bits), shots.observables))
        for label, name, flips in _damaged_flips(model, events, shots.observables):
            yield Planted(f"{key}: {label}", name, model, Shots(shots.detection_events, flips))


def _damaged_events(model: Problem, events: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    n = model.n_detectors
    rng = np.random.default_rng(3)
    time = layers(model)
    first, last = time == 0, time == time.max()
    yield "one dead detector", "dead_detectors", _with(events, [n // 2], False)
    yield "three dead detectors", "dead_detectors", _with(events, [1, n // 3, n - 1], False)
    yield "one stuck detector", "stuck_detectors", _with(events, [n // 2], True)
    inverted = events.copy()
    inverted[:, n // 3] ^= True
    yield "one inverted detector", "inverted_detectors", inverted
    for label, mask, name in (("first", first, "random_first_round"), ("last", last, "random_final_round")):
        yield f"{label} round random", name, np.where(mask, rng.random(events.shape) < 0.5, events)
    single = np.arange(n) == n // 2
    yield "one random detector", "random_detectors", np.where(single, rng.random(events.shape) < 0.5, events)
    yield "all detectors random", "random_events", rng.random(events.shape) < 0.5
    yield "no events", "no_events", np.zeros_like(events)
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(n)
        yield f"random order {seed}", "wrong_model", events[:, order]
    yield "independent events", "wrong_model", np.stack([rng.permutation(column) for column in events.T], 1)
    orders = {text: order for text, order in known_orders(model).items() if "sorted by position" in text}
    orders |= {text: order for text, order in known_orders(model).items() if "big-endian" in text}
    orders |= {text: order for text, order in known_orders(model).items() if "one round" in text}
    for text, order in orders.items():
        yield text, "detectors_permuted", events[:, np.argsort(order)]
    swapped = np.arange(n)
    swapped[[2, n - 3]] = swapped[[n - 3, 2]]
    yield "two detectors exchanged", "detectors_swapped", events[:, swapped]


def _damaged_flips(model: Problem, events: np.ndarray, flips: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    yield "observables constant", "constant_observables", np.zeros_like(flips)
    yield "observables inverted", "inverted_observables", ~flips
    yield "observables of other shots", "unrelated_observables", np.random.default_rng(4).permutation(flips)
    yield "observables one shot late", "observables_shifted", np.roll(flips, 1, 0)
    yield "observables five shots early", "observables_shifted", np.roll(flips, -5, 0)
    yield "observables in reverse order", "observables_reversed", flips[::-1]
    inside = model.graph.in_sector
    for detector in (int(inside[0]), int(inside[len(inside) // 2])):
        yield f"frame with D{detector}", "wrong_frame", flips ^ events[:, [detector]]


def _with(events: np.ndarray, columns: list[int], value: bool) -> np.ndarray:
    damaged = events.copy()
    damaged[:, columns] = value
    return damaged
