"""Decoding in windows over time: the answers of whole decoding, and networks that do not grow with the rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import stim
import torch

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.decoders import checkpoint, windows
from autoqec.decoders.base import Predecoder
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.windows import WindowedDecoder, WindowGraph
from autoqec.errors import ContractError, UsageError
from autoqec.qec import error_stream
from autoqec.qec.problem import Problem, error_model
from autoqec.qec.sampling import pack, sample, unpack
from tests.support.envs import surface

DSL = parse_dsl({"type": "local", "gate": 1.0, "local": {"hidden": 8, "space": 1, "time": 1}})


def problem(rounds: int, p: float = 0.02) -> Problem:
    return Problem.from_env(surface(3, p, rounds=rounds))


def randomized(dsl: PredecoderDSL) -> Predecoder:
    """Compile a predecoder for d=3 and add noise to every weight."""
    model, generator = compile_predecoder(dsl, problem(3), seed=1).eval(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a checkpoint for d=3 whose weights are random."""
    found = tmp_path / "w.pt"
    checkpoint.save(found, randomized(DSL), DSL)
    return found


def whole_predictions(path: Path, prob: Problem, events: np.ndarray) -> np.ndarray:
    decoder = CheckpointDecoder.of_other_circuit(problem(3).with_other_dem(prob.dem), path, gated=False)
    return decoder.decode(events)


def windowed(path: Path, prob: Problem, rounds_per_window: int) -> WindowedDecoder:
    return WindowedDecoder(problem(3).env, path, prob.dem, rounds_per_window)


@pytest.mark.parametrize("rounds_per_window", [13, 100])
def test_a_window_over_all_rounds_decodes_like_no_window(path: Path, rounds_per_window: int) -> None:
    prob = problem(12)
    events = sample(prob, 2500, 1).detection_events
    decoder = windowed(path, prob, rounds_per_window)
    expected = whole_predictions(path, prob, events)
    assert len(decoder.windows) == 1 and expected.any()
    assert (decoder.decode(events) == expected).all()


def test_network_and_matching_weights_are_those_of_the_whole_circuit(path: Path) -> None:
    prob = problem(24)
    events = unpack(sample(prob, 20, 1).detection_events, prob.n_detectors)
    whole = CheckpointDecoder.of_other_circuit(problem(3).with_other_dem(prob.dem), path, gated=False)
    expected = whole.log_odds(pack(events))
    position = {(*sorted(ends), *flips): edge for edge, (ends, flips) in enumerate(edge_keys(whole.problem))}
    seen = set()
    for ids, graph in windowed(path, prob, 8)._window_graphs():
        found = graph.network.log_odds(pack(events[:, ids]))
        keys = edge_keys(graph.network.problem)
        for edge in graph.edges.tolist():
            ends, flips = keys[edge]
            same = position[(*sorted(int(ids[end]) if end >= 0 else -1 for end in ends), *flips)]
            assert np.allclose(found[:, edge], expected[:, same], atol=1e-4)
            seen.add(same)
    assert seen == set(position.values())


def edge_keys(prob: Problem) -> list[tuple[list[int], list[int]]]:
    graph = prob.matching_graph
    return list(zip(graph.endpoints.tolist(), graph.observables.tolist(), strict=True))


def test_windows_decide_each_edge_once_and_explain_all_events(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(30)
    events = sample(prob, 200, 1).detection_events
    explained = np.zeros((200, prob.n_detectors), np.uint8)
    decode = WindowGraph.decode
    decoder = windowed(path, prob, 8)
    order = [ids for ids, _ in decoder._window_graphs()]

    def recorded(self: WindowGraph, seen: np.ndarray, passed_on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flipped, final = decode(self, seen, passed_on)
        explained[:, order.pop(0)] ^= final
        return flipped, final

    monkeypatch.setattr(WindowGraph, "decode", recorded)
    decoder.decode(events)
    in_sector = prob.graph.in_sector
    assert not order and (explained[:, in_sector] == unpack(events, prob.n_detectors)[:, in_sector]).all()


def test_small_windows_make_about_as_many_errors(path: Path) -> None:
    """A window of 2 x 4 rounds at d=3 loses little; committing without a look ahead would lose a lot."""
    prob = problem(24, 0.01)
    shots = sample(prob, 4000, 2)
    whole = whole_predictions(path, prob, shots.detection_events) != shots.observables
    parts = windowed(path, prob, 8).decode(shots.detection_events) != shots.observables
    gained, lost = int((parts & ~whole).sum()), int((whole & ~parts).sum())
    assert whole.sum() > 100 and gained + lost > 0
    assert abs(gained - lost) < 4 * np.sqrt(gained + lost)


def flips_at_the_start(prob: Problem) -> stim.DetectorErrorModel:
    """Return a model in which only errors of the first rounds flip the observable."""
    times = {detector: position[-1] for detector, position in prob.dem.get_detector_coordinates().items()}
    dem = stim.DetectorErrorModel()
    for each in prob.dem.flattened():
        targets = each.targets_copy()
        if each.type == "error" and max((times[t.val] for t in targets if t.is_relative_detector_id()), default=0) > 4:
            targets = [target for target in targets if not target.is_logical_observable_id()]
        dem.append(each.type, each.args_copy(), targets)
    return dem


def test_windows_without_flips_of_the_observable_are_decoded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They carry the corrections on; the detectors that matching reads are those of the whole model."""
    monkeypatch.setattr(error_stream, "MIN_PAIRS", 10)
    whole = problem(3).with_other_dem(flips_at_the_start(problem(24)))
    events = sample(problem(24), 2000, 1).detection_events
    decoder = windowed(path, whole, 12)
    matched = [ids[graph.detectors] for ids, graph in decoder._window_graphs()]
    assert np.array_equal(np.unique(np.concatenate(matched)), whole.graph.in_sector)
    expected = CheckpointDecoder.of_other_circuit(whole, path, gated=False).decode(events)
    found = decoder.decode(events)
    assert len(decoder.windows) > 2 and (found == expected).mean() > 0.97 and found.any()


def test_windows_without_detectors_that_matching_reads_are_skipped(path: Path) -> None:
    """After the rounds of one circuit come those of another one, which flips no observable."""
    prob, dem = problem(8), stim.DetectorErrorModel()
    dem += prob.dem
    dem.append("shift_detectors", [0, 0, 30], [prob.n_detectors])
    for each in prob.dem.flattened():
        dem.append(each.type, each.args_copy(), [t for t in each.targets_copy() if not t.is_logical_observable_id()])
    first = sample(prob, 500, 1).detection_events
    events = pack(np.concatenate([unpack(first, prob.n_detectors)] * 2, axis=1))
    decoder = WindowedDecoder(problem(3).env, path, dem, 6)
    assert (decoder.decode(events) == whole_predictions(path, prob, first)).mean() > 0.95
    assert len(list(decoder._window_graphs())) < len(decoder.windows)


def test_model_without_flips_of_the_observable_is_rejected(path: Path) -> None:
    dem = stim.DetectorErrorModel()
    for each in problem(24).dem.flattened():
        targets = [target for target in each.targets_copy() if not target.is_logical_observable_id()]
        dem.append(each.type, each.args_copy(), targets)
    with pytest.raises(UsageError, match="no detectable error flips an observable") as caught:
        WindowedDecoder(problem(3).env, path, dem, 6)
    assert caught.value.location == "detector error model"


def test_repeated_rounds_share_one_graph(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many networks for 200 rounds as for 40: only the first and the last windows differ."""
    kept = []
    for rounds in (40, 200):
        decoder = windowed(path, problem(rounds), 8)
        decoder.decode(np.zeros((1, -(-decoder.n_detectors // 8)), np.uint8))
        kept.append(len(decoder._graphs))
        assert len(decoder.windows) > rounds / 4 - 3
    assert kept[0] == kept[1] < windows.MAX_CACHED


def test_windows_that_differ_are_built_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(24)
    events = sample(prob, 50, 1).detection_events
    expected = windowed(path, prob, 8).decode(events)
    monkeypatch.setattr(windows, "MAX_CACHED", 1)
    decoder = windowed(path, prob, 8)
    assert (decoder.decode(events) == expected).all() and len(decoder._graphs) == 1


def test_edges_of_an_untrained_class_are_counted_once(path: Path) -> None:
    payload = torch.load(path, weights_only=True)
    missing = next(name for name in payload["state_dict"] if name.startswith("body.classes.(0 0 1)."))
    prefix = missing[: missing.index(")") + 1]
    payload["state_dict"] = {name: v for name, v in payload["state_dict"].items() if not name.startswith(prefix)}
    torch.save(payload, path)
    prob = problem(24)
    whole = CheckpointDecoder.of_other_circuit(problem(3).with_other_dem(prob.dem), path, gated=False)
    decoder = windowed(path, prob, 8)
    decoder.decode(sample(prob, 10, 1).detection_events)
    assert decoder.n_unknown_edges == whole.n_unknown_edges > 0


def test_bad_input_is_named(path: Path, tmp_path: Path) -> None:
    prob = problem(12)
    with pytest.raises(UsageError, match="expected bit-packed"):
        windowed(path, prob, 4).decode(np.zeros((2, 1), np.uint8))
    bare = stim.DetectorErrorModel("\n".join(str(each) for each in prob.dem if each.type == "error"))
    with pytest.raises(UsageError, match="windows need detector coordinates"):
        WindowedDecoder(problem(3).env, path, bare, 4)
    dsl = parse_dsl({"type": "mlp", "mlp": {"hidden": 8}})
    checkpoint.save(tmp_path / "mlp.pt", randomized(dsl), dsl)
    with pytest.raises(ContractError, match="type `mlp` belong to one circuit"):
        windowed(tmp_path / "mlp.pt", prob, 4)


@pytest.mark.parametrize("span", [4, 12])
def test_flips_are_carried_over_several_windows(path: Path, span: int) -> None:
    """The first window explains detection events that only a window long after it matches."""
    prob = problem(20, 0.001)
    coordinates = prob.coordinates[prob.graph.in_sector].tolist()
    found = {(x, y, t): int(each) for each, (x, y, t) in zip(prob.graph.in_sector, coordinates, strict=True)}
    pairs = [(each, found[x, y, span]) for (x, y, t), each in found.items() if t == 0]
    dem = prob.dem.copy()
    for pair in pairs:
        dem.append("error", 0.3, [stim.target_relative_detector_id(each) for each in pair])
    decoder = WindowedDecoder(problem(3).env, path, dem, 2)
    first, second = decoder.windows[:2]
    assert second.last <= span < first.high and first.end == 1 and len(pairs) == 4
    events = np.zeros((len(pairs), prob.n_detectors), np.uint8)
    for row, pair in zip(events, pairs, strict=True):
        row[list(pair)] = 1
    assert decoder.decode(pack(events)).tolist() == [[False]] * len(pairs)


def test_errors_in_any_order_give_the_same_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may list late errors first: blocks are read as far as a window needs them."""
    monkeypatch.setattr(error_stream, "MAX_BLOCK", 50)
    prob = problem(24)
    events = sample(prob, 200, 1).detection_events
    errors = [each for each in prob.dem if each.type == "error"]
    reversed_dem = stim.DetectorErrorModel()
    for each in reversed(errors):
        reversed_dem.append(each)
    for each in prob.dem:
        if each.type == "detector":
            reversed_dem.append(each)
    found = WindowedDecoder(problem(3).env, path, reversed_dem, 8).decode(events)
    assert (found == windowed(path, prob, 8).decode(events)).mean() > 0.99  # ties


def test_loops_decode_like_the_unrolled_model(path: Path) -> None:
    prob = problem(40)
    events = sample(prob, 200, 1).detection_events
    loops = error_model(prob.circuit, prob.env)
    assert "repeat" in str(loops) and "repeat" not in str(prob.dem)
    decoder = WindowedDecoder(problem(3).env, path, loops, 8)
    assert (decoder.decode(events) == windowed(path, prob, 8).decode(events)).all()
    assert (decoder.decode(events[:9]) == windowed(path, prob, 8).decode(events[:9])).all()
