"""Networks of type `local` in C, against the modules that define them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders import checkpoint, decoding, local_forward, overlay
from autoqec.decoders.base import Predecoder
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.local_forward import LocalForward, compiled_network
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, sample, unpack
from tests.support.envs import surface

FLOAT32 = 2e-5  # log-odds of up to 50, summed in another order
pytestmark = pytest.mark.skipif(compiled_network() is None, reason="the C extension is not built: pip install -e .")


def problem(d: int, rounds: int, p: float = 0.01) -> Problem:
    return Problem.from_env(surface(d, p, rounds=rounds))


def config(gate: float | None = None, **changes: Any) -> dict[str, Any]:
    block = {"hidden": 8, "space": 1, "time": 1} | {
        key: value for key, value in changes.items() if key not in ("head", "output_mode")
    }
    rest = {key: value for key, value in changes.items() if key not in block}
    return {"type": "local", "gate": gate, **rest, "local": block}


def randomized(settings: dict[str, Any], prob: Problem, noise: float = 0.3) -> Predecoder:
    """Compile a predecoder and add noise to every weight."""
    model, generator = compile_predecoder(parse_dsl(settings), prob, seed=1).eval(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += noise * torch.randn(parameter.shape, generator=generator)
    return model


def shots(prob: Problem) -> np.ndarray:
    """Bit-packed shots: none fired, all, every detector alone, pairs, random ones of all densities, sampled ones."""
    rng, n = np.random.default_rng(3), prob.n_detectors
    single = np.eye(n, dtype=np.uint8)
    fired = [np.zeros((1, n)), np.ones((1, n)), single, single | np.roll(single, 1, axis=1)]
    fired += [rng.random((30, n)) < share for share in (0.01, 0.1, 0.5)]
    return np.concatenate([pack(np.concatenate(fired).astype(np.uint8)), sample(prob, 100, 1).detection_events])


def reference(model: Predecoder, events: np.ndarray, n_detectors: int) -> np.ndarray:
    with torch.no_grad():
        output: np.ndarray = model(torch.from_numpy(unpack(events, n_detectors)).float()).numpy()
    return output


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden": 2},
        {"hidden": 33, "depth": 3},
        {"hidden": 64, "depth": 1},
        {"head": "mlp_small"},
        {"head": "mlp_small", "hidden": 70},
        {"space": 0, "time": 0},
        {"space": 3, "time": 3, "inputs": "all"},
        {"inputs": "all"},
        {"inputs": "all_in_finetuning"},
        {"output_mode": "hard_flip"},
    ],
)
def test_outputs_are_those_of_the_network(
    changes: dict[str, Any], pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of more than 64 detectors need more than one word of bits."""
    monkeypatch.setattr(local_forward, "MAX_ENTRIES", 2**30 if pairs else 0)
    prob = problem(5, 5) if "space" in changes else problem(3, 5)
    model, events = randomized(config(**changes), prob), shots(prob)
    local = LocalForward.of(model, prob.n_detectors)
    assert local is not None
    found, expected = local(events), reference(model, events, prob.n_detectors)
    assert found.dtype == np.float32 and np.ptp(expected, axis=0).max() > 0.5
    assert np.abs(found - expected).max() < FLOAT32 * max(1, np.abs(expected).max() / 50)
    sizes = local._network[0]
    assert sizes.has_pairs == pairs and (sizes.words > 1) is (changes.get("space") == 3)


def test_outputs_of_a_shot_do_not_depend_on_its_batch() -> None:
    prob = problem(5, 5)
    local, events = LocalForward.of(randomized(config(), prob), prob.n_detectors), shots(prob)
    assert local is not None
    together = local(events)
    one_by_one = np.concatenate([local(events[shot : shot + 1]) for shot in range(len(events))])
    assert np.array_equal(together, one_by_one)
    assert np.array_equal(local(events[::-1]), together[::-1])
    assert local(events[:0]).shape == (0, together.shape[1])


def test_threads_that_share_an_object_get_the_outputs_of_one_thread() -> None:
    """Also while the arrays are built, which the first call does."""
    prob = problem(5, 5)
    model, events = randomized(config(depth=3), prob), np.tile(shots(prob), (8, 1))
    expected = LocalForward(model, prob.n_detectors)(events)
    parts = [np.roll(events, 17 * thread, axis=0) for thread in range(4)]
    shared, barrier = LocalForward(model, prob.n_detectors), threading.Barrier(len(parts))

    def forward(part: np.ndarray) -> list[np.ndarray]:
        barrier.wait(60)
        return [shared(part) for _ in range(3)]

    with ThreadPoolExecutor(len(parts)) as pool:
        found = list(pool.map(forward, parts))
    for thread, outputs in enumerate(found):
        for output in outputs:
            assert np.array_equal(output, np.roll(expected, 17 * thread, axis=0))


def test_table_of_pairs_does_not_change_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(5, 3)
    model, events = randomized(config(), prob), shots(prob)
    with_pairs = LocalForward(model, prob.n_detectors)(events)
    monkeypatch.setattr(local_forward, "MAX_ENTRIES", 0)
    assert np.array_equal(LocalForward(model, prob.n_detectors)(events), with_pairs)


@pytest.mark.parametrize("gate", [None, 4.0])
@pytest.mark.parametrize(("d", "rounds"), [(3, 3), (5, 5), (3, 7)])
def test_predictions_are_those_of_the_network(
    d: int, rounds: int, gate: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 20,000 shots, with and without a gate; d=3 with 7 rounds has weights of d=5 with 5 rounds."""
    trained, decoded = problem(5 if (d, rounds) == (3, 7) else d, 5 if rounds == 7 else rounds), problem(d, rounds)
    dsl, path = parse_dsl(config(gate)), tmp_path / "weights.pt"
    checkpoint.save(path, randomized(config(gate), trained, noise=0.1), dsl)
    load = CheckpointDecoder.of if trained.n_detectors == decoded.n_detectors else None
    decoder = load(trained.env, path) if load else CheckpointDecoder.of_other_circuit(decoded, path)
    events = np.concatenate([sample(decoded, 20_000, 5).detection_events, shots(decoded)])
    found, log_odds = decoder.decode(events), decoder.log_odds(events[:500])
    monkeypatch.setattr(decoding.LocalForward, "of", lambda *_: None)
    slow = load(trained.env, path) if load else CheckpointDecoder.of_other_circuit(decoded, path)
    assert decoder._local is not None and slow._local is None
    assert np.abs(log_odds - slow.log_odds(events[:500])).max() < FLOAT32
    assert np.array_equal(found, slow.decode(events))
    plain = decoder.decoder.inner.decode(events)
    assert np.count_nonzero(found != plain) > 50, "the network changes predictions"


def test_only_networks_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch may define another `Local`, or another head; other types have no windows."""
    prob = problem(3, 3)
    model = randomized(config(), prob)
    dense = compile_predecoder(parse_dsl({"type": "mlp", "mlp": {"hidden": 8}}), prob, seed=1)
    assert LocalForward.of(dense, prob.n_detectors) is None
    assert LocalForward.of(model, prob.n_detectors) is not None
    body: Any = model.body
    part = next(iter(body.classes.values()))
    whole, part.head = part.head, torch.nn.Tanh()
    assert LocalForward.of(model, prob.n_detectors) is None
    part.head = whole
    monkeypatch.setattr(overlay, "current_modules_dir", lambda: Path("elsewhere"))
    assert LocalForward.of(model, prob.n_detectors) is None


def test_without_the_extension_torch_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(3, 3)
    model, events = randomized(config(), prob), shots(prob)
    expected = CheckpointDecoder.of_model(model, prob).decode(events)
    monkeypatch.setattr(local_forward, "compiled_network", lambda: None)
    decoder = CheckpointDecoder.of_model(model, prob)
    assert decoder._local is None and np.array_equal(decoder.decode(events), expected)


@pytest.mark.parametrize("name", ["classes.(0 0 1).events", "trunk.0.weight", "classes.(0 0 1).head.bias"])
def test_weights_that_are_not_finite_are_reported(name: str) -> None:
    prob = problem(3, 3)
    model = randomized(config(), prob)
    dict(model.body.named_parameters())[name].data[...] = float("nan")
    with pytest.raises(ContractError, match="not finite"):
        CheckpointDecoder.of_model(model, prob).decode(shots(prob))


def test_memory_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(3, 3)
    local = LocalForward.of(randomized(config(), prob), prob.n_detectors)
    assert local is not None
    local(shots(prob)[:1])
    monkeypatch.setattr(local_forward, "compiled_network", lambda: (None, lambda *_: -1))
    with pytest.raises(MemoryError):
        local(shots(prob))


@pytest.mark.parametrize("shape", [(3, 2), (3, 4), (3,)])
def test_shots_of_another_width_are_not_read(shape: tuple[int, ...]) -> None:
    prob = problem(3, 3)  # 24 detectors: 3 bytes
    forward = LocalForward.of(randomized(config(), prob), prob.n_detectors)
    assert forward is not None
    with pytest.raises(ValueError, match="3 bytes per shot"):
        forward(np.full(shape, 255, np.uint8))


def test_candidate_process_answers_what_decode_computes() -> None:
    from autoqec.verification.candidate.process import infer_log_odds

    prob = problem(3, 3)
    model, events = randomized(config(), prob), shots(prob)
    local, n = LocalForward.of(model, prob.n_detectors), prob.n_detectors
    assert local is not None
    answers = [np.frombuffer(infer_log_odds(model, each, events.tobytes(), n), "<f4") for each in (local, None)]
    assert np.array_equal(answers[0], local(events).ravel())
    assert np.abs(answers[0] - answers[1]).max() < FLOAT32
