"""Undecodable models are refused with the reason; unusual but valid models are decoded."""

from __future__ import annotations

import numpy as np
import pytest

from autoqec.contracts.env import DemFileCode, EnvSpec, FileNoise
from autoqec.errors import UsageError
from autoqec.qec.backends import make_backend, make_soft_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from tests.support.envs import BANDS, problem

MODES = ("soft_priors", "hard_flip")
GRAPHLESS = ("bposd", "bplsd")
EVERY = ("mwpm", *GRAPHLESS)


def model(text: str, backend: str, **more: object) -> EnvSpec:
    baselines = ("mwpm", "mwpm_correlated") if backend == "mwpm" else ("bposd0",)
    values = {"name": "model", "code": DemFileCode(path="m.dem", text=text), "noise": FileNoise(), "seed_policy": BANDS}
    return EnvSpec(**values, backend=backend, baselines=baselines, **more)  # type: ignore[arg-type]


REFUSED = {
    "a logical that nothing flips": (
        "error(0.1) D0\nerror(0.1) D0 D1\nlogical_observable L0", EVERY, "no detectable error flips an observable"),
    "a logical that is only flipped unseen": (
        "error(0.1) D0\nerror(0.1) L0", EVERY, "no detectable error flips an observable"),
    "hyperedges for matching": ("error(0.1) D0 D1 D2 L0", ("mwpm",), r"3 detectors at once.*backend: bposd"),
    "a certain mechanism": ("error(1) D0 L0\nerror(0.1) D0 D1", EVERY, "probability"),
    "an impossible mechanism": ("error(0) D0 L0\nerror(0.1) D0 D1 L0", GRAPHLESS, "probability 0 or 1"),
    "no detectors": ("error(0.1) L0", EVERY, "0 detectors"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "backend"), [(name, backend) for name, (_, backends, _) in REFUSED.items() for backend in backends]
)
def test_undecodable_model_is_refused(name: str, backend: str) -> None:
    text, _, message = REFUSED[name]
    with pytest.raises(UsageError, match=message) as caught:
        Problem.from_env(model(text, backend))
    assert caught.value.hint and "model" in str(caught.value.location)


@pytest.mark.parametrize("backend", EVERY)
def test_detectors_that_never_fire_change_nothing(backend: str) -> None:
    """One among the others, and full bytes of them at the end."""
    busy = "error(0.1) D0 L0\nerror(0.05) D0 D{0}\nerror(0.1) D{0}"
    quiet = Problem.from_env(model(busy.format(2) + "\ndetector D20", backend))
    alone = Problem.from_env(model(busy.format(1), backend))
    shots = sample(quiet, 500, 1)
    assert quiet.n_detectors == 21 and shots.detection_events.shape[1] == 3
    permuted = (shots.detection_events[:, :1] & 1) | (shots.detection_events[:, :1] >> 1 & 2)  # D0 stays, D2 becomes D1
    names = ("mwpm", "mwpm_correlated") if backend == "mwpm" else GRAPHLESS
    for name in names:
        assert np.array_equal(
            make_backend(name, quiet).decode(shots.detection_events), make_backend(name, alone).decode(permuted)
        ), name
    for mode in MODES:
        log_odds = np.tile(quiet.variables(mode).log_odds.astype(np.float32), (500, 1))  # type: ignore[arg-type]
        soft = make_soft_backend(quiet, mode)  # type: ignore[arg-type]
        assert np.array_equal(
            soft.decode_soft(shots.detection_events, log_odds), soft.decode(shots.detection_events)
        ), mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", EVERY)
def test_non_finite_or_misshapen_log_odds_are_rejected(backend: str, mode: str) -> None:
    prob = Problem.from_env(EnvSpec.model_validate(
        {**problem(3).env.dump(), "backend": backend, "baselines": ["mwpm"] if backend == "mwpm" else ["bposd0"]}
    ))  # fmt: skip
    soft, n = make_soft_backend(prob, mode), prob.variables(mode).n_edges  # type: ignore[arg-type]
    events = sample(prob, 2, 1).detection_events
    for value in (np.nan, np.inf, -np.inf):
        log_odds = np.zeros((2, n), np.float32)
        log_odds[1, 3] = value
        with pytest.raises(ValueError, match="not finite"):
            soft.decode_soft(events, log_odds)
    with pytest.raises(ValueError, match=rf"\(2, {n + 1}\), expected \(2, {n}\)"):
        soft.decode_soft(events, np.zeros((2, n + 1), np.float32))


BP = {
    "iterations": [1, 2, 30],
    "method": ["minimum_sum", "product_sum"],
    "scaling": [0.4, 0.75, 1.0],
    "order": [0, 10],
}


@pytest.mark.parametrize("backend", GRAPHLESS)
@pytest.mark.parametrize("setting", sorted(BP))
def test_every_setting_of_belief_propagation_has_an_effect(backend: str, setting: str) -> None:
    """OSD and LSD: on shots that need the second stage, each setting changes the predictions."""
    shots, found = sample(problem(3, 0.04), 500, 1), []
    for value in BP[setting]:
        few = {"iterations": 2} if setting == "order" else {}
        spec = {
            **problem(3, 0.04).env.dump(),
            "backend": backend,
            "baselines": ["bposd0"],
            "bp": {setting: value, **few},
        }
        found.append(
            make_backend(backend, Problem.from_env(EnvSpec.model_validate(spec))).decode(shots.detection_events)
        )
    for i, first in enumerate(found):
        for second in found[i + 1 :]:
            assert not np.array_equal(first, second)


def test_order_in_a_decoder_name_overrides_the_setting() -> None:
    shots = sample(problem(3, 0.04), 300, 1)
    for name, order in (("bposd0", 0), ("bposd_cs10", 10)):
        other_order, spec = 10 - order, {**problem(3, 0.04).env.dump(), "backend": "bposd", "baselines": ["bposd0"]}
        with_order, overridden = (
            Problem.from_env(EnvSpec.model_validate({**spec, "bp": {"iterations": 2, "order": value}}))
            for value in (order, other_order)
        )
        assert np.array_equal(
            make_backend(name, overridden).decode(shots.detection_events),
            make_backend("bposd", with_order).decode(shots.detection_events),
        )


@pytest.mark.parametrize("backend", EVERY)
def test_detector_named_twice_is_not_flipped(backend: str) -> None:
    """Repeated targets cancel, as stim samples them, also within one component."""
    twice = Problem.from_env(model("error(0.1) D0 D1 D0 L0 ^ D0\nerror(0.2) D0 D1 L0", backend))
    once = Problem.from_env(model("error(0.1) D1 L0 ^ D0\nerror(0.2) D0 D1 L0", backend))
    assert not (twice.H != once.H).nnz and not (twice.L != once.L).nnz
    shots = sample(once, 200, 1)
    assert np.array_equal(
        make_backend(backend, twice).decode(shots.detection_events),
        make_backend(backend, once).decode(shots.detection_events),
    )
