"""The forward pass of one shot: the outputs of the network, for every option of dense networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders import checkpoint, overlay, single_shot
from autoqec.decoders.base import Predecoder
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.local_forward import LocalForward, compiled_network
from autoqec.decoders.single_shot import SingleShot
from autoqec.models import load_models, model_env, model_path
from autoqec.qec.sampling import sample, unpack
from tests.support.envs import problem

FLOAT32 = 1e-5  # log-odds of up to 20, summed in another order
MOST = 20_000  # shots decoded one by one; without a gate every shot is ambiguous


def randomized(config: dict[str, Any]) -> Predecoder:
    """Compile a predecoder for d=3 and add noise to every weight."""
    model, generator = (
        compile_predecoder(parse_dsl(config), problem(3), seed=1).eval(),
        torch.Generator().manual_seed(0),
    )
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu"},
        {"activation": "silu"},
        {"depth": 1},
        {"depth": 3},
        {"skip": False},
        {"inputs": "all"},
        {"head": "mlp_small"},
        {"output_mode": "hard_flip"},
    ],
)
@pytest.mark.parametrize("built", [True, False])
def test_outputs_are_those_of_the_network(
    changes: dict[str, Any], built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if built and single_shot.compiled_dense() is None:
        pytest.skip("no C extension; install: make install")
    if not built:
        monkeypatch.setattr(single_shot, "compiled_dense", lambda: None)
    in_torch: list[int] = []
    forward = SingleShot._in_torch
    monkeypatch.setattr(SingleShot, "_in_torch", lambda self, shot: in_torch.append(1) or forward(self, shot))
    block = {key: value for key, value in changes.items() if key not in ("head", "output_mode")}
    rest = {key: value for key, value in changes.items() if key not in block}
    model = randomized({"type": "mlp", **rest, "mlp": {"hidden": 8, **block}})
    n_detectors = problem(3).n_detectors
    single = SingleShot.of(model, n_detectors)
    events = sample(problem(3), 200, 1).detection_events
    events[0] = 0
    with torch.no_grad():
        expected = model(torch.from_numpy(unpack(events, n_detectors)).float()).numpy()
    assert single is not None and np.ptp(expected, axis=0).min() > 0
    found = np.stack([single(shot) for shot in events])
    assert bool(in_torch) == (not built or changes.get("activation", "relu") != "relu")
    assert found.dtype == np.float32 and np.abs(found - expected).max() < FLOAT32


def test_widths_that_are_no_multiple_of_a_vector() -> None:
    """Padding is neither read as a value nor written to the output."""
    config = {"type": "mlp", "head": "mlp_small", "mlp": {"hidden": 150, "depth": 3, "inputs": "all"}}
    model, events = randomized(config), sample(problem(3), 100, 2).detection_events
    single = SingleShot.of(model, problem(3).n_detectors)
    with torch.no_grad():
        expected = model(torch.from_numpy(unpack(events, problem(3).n_detectors)).float()).numpy()
    assert single is not None
    found = np.stack([single(shot) for shot in events])
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)  # larger values than those of trained networks


def test_weights_that_are_not_finite_show_in_the_output() -> None:
    model = randomized({"type": "mlp", "mlp": {"hidden": 8}})
    body: Any = model.body
    body.first.bias.data[3] = float("nan")
    single = SingleShot.of(model, problem(3).n_detectors)
    assert single is not None and np.isnan(single(np.zeros(3, np.uint8))).any()


def test_shots_of_another_size_are_rejected() -> None:
    single = SingleShot.of(randomized({"type": "mlp", "mlp": {"hidden": 8}}), problem(3).n_detectors)
    assert single is not None
    with pytest.raises(ValueError, match="expected 3 bytes"):
        single(np.zeros(2, np.uint8))


@pytest.mark.parametrize("skip", [False, True])
def test_weights_are_copied_at_the_first_single_shot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    """Batches need no copy; a network without a linear path has no columns for one."""
    copied: list[tuple[int, ...]] = []
    concatenate = torch.cat

    def recorded(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
        copied.append(tuple(concatenate(tensors, dim=dim).shape))
        return concatenate(tensors, dim=dim)

    dsl = parse_dsl({"type": "mlp", "mlp": {"hidden": 8, "skip": skip}})
    checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=1), dsl)
    decoder = CheckpointDecoder.of(problem(3).env, tmp_path / "checkpoint.pt")
    events, n_edges = sample(problem(3), 20, 1).detection_events, decoder.problem.graph.n_edges
    monkeypatch.setattr(torch, "cat", recorded)
    decoder.log_odds(events)
    assert not copied
    for shot in range(3):
        decoder.log_odds(events[shot : shot + 1])
    assert [columns for _, columns in copied] == [8 + n_edges * skip]


def test_only_dense_networks_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch may define another `Mlp` with the same layers, or another head."""
    model = randomized({"type": "mlp", "mlp": {"hidden": 8}})
    assert SingleShot.of(randomized({"type": "local", "local": {"hidden": 4}}), 24) is None
    body: Any = model.body
    whole, body.head = body.head, torch.nn.Tanh()
    assert SingleShot.of(model, 24) is None
    body.head = whole
    assert SingleShot.of(model, 24) is not None
    monkeypatch.setattr(overlay, "current_modules_dir", lambda: Path("elsewhere"))
    assert SingleShot.of(model, 24) is None


@pytest.mark.parametrize("name", sorted(load_models()))
def test_models_decode_single_shots_like_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 100,000 shots: plain matching decodes those that are not ambiguous, in either case.

    BP+OSD is slow, and turns rounding errors of the log-odds into other predictions: it must give those of its own.
    """
    decoder = CheckpointDecoder.of(model_env(name), model_path(name))
    matching = decoder.problem.env.backend == "mwpm"
    events = sample(decoder.problem, 100_000 if matching else 200, 5).detection_events
    ambiguous = decoder.decoder.select(events).detection_events[:MOST]
    assert len(ambiguous) > 1000 or not matching
    log_odds = decoder.log_odds(ambiguous[:200])
    forward: Any = LocalForward if load_models()[name].translation_invariant else SingleShot
    if forward is LocalForward and compiled_network() is None:
        pytest.skip("no C extension; install: make install")
    used = 0
    call = forward.__call__

    def counted(self: Any, *shot: Any) -> np.ndarray:
        nonlocal used
        used += 1
        output: np.ndarray = call(self, *shot)
        return output

    monkeypatch.setattr(forward, "__call__", counted)
    found = np.concatenate([decoder.decode(ambiguous[i : i + 1]) for i in range(len(ambiguous))])
    assert used == len(ambiguous)
    ones = np.concatenate([decoder.log_odds(ambiguous[i : i + 1]) for i in range(200)])
    expected = decoder.decode(ambiguous) if matching else decoder.decoder.inner.decode_soft(ambiguous, ones)
    assert np.array_equal(found, expected)
    assert np.abs(ones - log_odds).max() < FLOAT32
