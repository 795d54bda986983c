"""Type `local`: weights shared over space and time, for any distance and number of rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import stim
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders import checkpoint
from autoqec.decoders.base import Predecoder, ProblemView
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.modules import local
from autoqec.errors import ContractError, UsageError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample, unpack
from tests.support.envs import repetition, surface

DSL = parse_dsl({"type": "local", "local": {"hidden": 8, "space": 1, "time": 1}})


def problem(d: int, rounds: int) -> Problem:
    return Problem.from_env(surface(d, 0.01, rounds=rounds))


def random_predecoder(prob: Problem) -> Predecoder:
    """Compile a predecoder and add noise to every weight."""
    model = compile_predecoder(DSL, prob, seed=1).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def events(prob: Problem, share: float = 0.1, n: int = 64) -> torch.Tensor:
    return (torch.rand(n, prob.n_detectors, generator=torch.Generator().manual_seed(2)) < share).float()


def saved(prob: Problem, path: Path) -> Path:
    checkpoint.save(path, random_predecoder(prob), DSL)
    return path


def surroundings(model: Predecoder) -> dict[int, tuple[str, bytes]]:
    """Return the class and the constant inputs of each edge."""
    found = {}
    for name, part in model.body.classes.items():
        for edge, row in zip(part.edges.tolist(), part.surroundings.numpy().round(4), strict=True):
            found[edge] = (name, row.tobytes())
    return found


@pytest.mark.parametrize("shift", [(0, 0, 1), (0, 0, 2), (1, 1, 0), (2, 0, 0), (-1, 1, 1)])
def test_shifted_syndrome_gives_shifted_outputs(shift: tuple[int, int, int]) -> None:
    prob = problem(7, 7)
    model = random_predecoder(prob)
    points = local.lattice_points(ProblemView.of(prob).coordinates)
    position = {point: detector for detector, point in enumerate(points)}

    def moved(detector: int) -> int | None:
        return position.get(tuple(a + b for a, b in zip(points[detector], shift, strict=True)))

    shots = events(prob)
    shifted = torch.zeros_like(shots)
    for detector in range(prob.n_detectors):
        if (target := moved(detector)) is None:
            shots[:, detector] = 0
        else:
            shifted[:, target] = shots[:, detector]
    detectors_of = local.edge_detectors(ProblemView.of(prob))
    edge_of = {frozenset(detectors): edge for edge, detectors in enumerate(detectors_of) if len(detectors) == 2}
    inputs = surroundings(model)
    images = {edge: edge_of.get(frozenset(map(moved, detectors))) for detectors, edge in edge_of.items()}
    pairs = [(edge, image) for edge, image in images.items() if image is not None and inputs[edge] == inputs[image]]
    before, after = (model(part).detach() - model.prior for part in (shots, shifted))
    assert len(pairs) > 20, "constant inputs depend on the position"
    source, target = torch.tensor(pairs).T
    assert float(before[:, source].std(dim=0).min()) > 1e-3
    assert torch.allclose(before[:, source], after[:, target], atol=1e-5)


@pytest.mark.parametrize(("share", "few"), [(0.002, True), (0.3, False)])
def test_windows_with_and_without_events_equal_the_dense_evaluation(share: float, few: bool) -> None:
    prob = problem(5, 5)
    model = random_predecoder(prob)
    body = model.body
    shots = torch.cat([events(prob, share), torch.zeros(1, prob.n_detectors)])
    padded = torch.cat([shots, torch.zeros(len(shots), 1)], dim=1)
    active = total = 0
    for part in body.classes.values():
        windows = padded[:, part.columns.view(len(part.edges), -1)]
        hidden = torch.relu(windows @ part.events[part.used] + part.quiet(part.surroundings))
        for layer in body.trunk:
            hidden = hidden + torch.relu(layer(hidden))
        dense = part.head(hidden)[..., 0]
        assert torch.allclose(part(padded, body.trunk), dense, atol=1e-5)
        active += int(windows.any(dim=2).sum())
        total += windows.shape[0] * windows.shape[1]
    assert (active < local.MAX_SPARSE_SHARE * total) is few and 0 < active < total


def test_passes_do_not_change_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    prob = problem(3, 3)
    model = random_predecoder(prob)
    shots = events(prob)
    whole = model(shots)
    monkeypatch.setattr(local, "WINDOWS_PER_PASS", 30)
    assert torch.allclose(model(shots), whole, atol=1e-5)


@pytest.mark.parametrize(("d", "rounds"), [(3, 2), (5, 2), (5, 5), (7, 3), (3, 40)])
def test_weights_load_for_any_distance_and_rounds(tmp_path: Path, d: int, rounds: int) -> None:
    """Edges with the same surroundings get the same log-odds in both circuits."""
    trained, other = problem(5, 5), problem(d, rounds)
    model, known = checkpoint.load_for_other_circuit(saved(trained, tmp_path / "w.pt"), other)
    home = random_predecoder(trained)
    assert known.all() and {name: each.shape for name, each in model.named_parameters()} == {
        name: each.shape for name, each in home.named_parameters()
    }
    constant = {key: edge for edge, key in surroundings(home).items()}
    pairs = [(constant[key], edge) for edge, key in surroundings(model).items() if key in constant]
    quiet = [
        (each(torch.zeros(1, each_problem.n_detectors))[0] - each.prior).detach()
        for each, each_problem in ((home, trained), (model, other))
    ]
    if d > 3:
        assert pairs
    for ours, theirs in pairs:
        assert float(quiet[0][ours]) == pytest.approx(float(quiet[1][theirs]), abs=1e-5)
    assert model.circuit_sha256.tolist() == list(bytes.fromhex(other.circuit_sha256))


def test_decoder_takes_models_of_other_distances(tmp_path: Path) -> None:
    trained, other = problem(3, 3), problem(5, 4)
    path = saved(trained, tmp_path / "w.pt")
    shots = sample(other, 3000, 1)
    decoder = CheckpointDecoder.of(trained.env, path, other.dem)
    model, _ = checkpoint.load_for_other_circuit(path, other)
    detections = torch.from_numpy(unpack(shots.detection_events, other.n_detectors)).float()
    expected = model(detections).detach().numpy()
    assert np.allclose(decoder.log_odds(shots.detection_events), expected, atol=1e-4)
    assert decoder.n_unknown_edges == 0 and decoder.decode(shots.detection_events).shape == (3000, 1)


def test_edges_of_an_untrained_class_keep_their_priors(tmp_path: Path) -> None:
    trained, other = problem(3, 3), problem(5, 5)
    path = saved(trained, tmp_path / "w.pt")
    payload = torch.load(path, weights_only=True)
    missing = next(name for name in random_predecoder(trained).body.classes if name.startswith("("))
    payload["state_dict"] = {
        name: value for name, value in payload["state_dict"].items() if not name.startswith(f"body.classes.{missing}.")
    }
    torch.save(payload, path)
    decoder = CheckpointDecoder.of(trained.env, saved(trained, tmp_path / "whole.pt"), other.dem)
    assert decoder.n_unknown_edges == 0
    model, known = checkpoint.load_for_other_circuit(path, other)
    edges = model.body.classes[missing].edges.numpy()
    assert len(edges) and not known[edges].any() and known.sum() == len(known) - len(edges)
    output = model(events(other)).detach() - model.prior
    assert (output[:, edges] == 0).all() and (output[:, known] != 0).any()


def test_models_without_coordinates_are_refused(tmp_path: Path) -> None:
    trained, other = problem(3, 3), problem(5, 5)
    path = saved(trained, tmp_path / "w.pt")
    bare = stim.DetectorErrorModel("\n".join(str(each) for each in other.dem if each.type == "error"))
    with pytest.raises(UsageError, match="need detector coordinates") as caught:
        CheckpointDecoder.of(trained.env, path, bare)
    assert caught.value.location == "detector error model" and "DETECTOR" in (caught.value.hint or "")
    with pytest.raises(ValueError, match="different coordinates"):
        view = ProblemView.of(trained)
        local.build(DSL.block.dump(), "linear", type(view)(**{**vars(view), "coordinates": 0 * view.coordinates + 1}))


def test_other_types_are_bound_to_their_circuit(tmp_path: Path) -> None:
    dsl = parse_dsl({"type": "mlp", "mlp": {"hidden": 8}})
    trained, other = problem(3, 3), problem(5, 5)
    checkpoint.save(tmp_path / "w.pt", compile_predecoder(dsl, trained, seed=0), dsl)
    with pytest.raises(ContractError, match="type `mlp` belong to one circuit") as loaded:
        checkpoint.load_for_other_circuit(tmp_path / "w.pt", other)
    with pytest.raises(ContractError, match="120 detectors") as decoded:
        CheckpointDecoder.of(trained.env, tmp_path / "w.pt", other.dem)
    assert all("type `local`" in (each.value.hint or "") for each in (loaded, decoded))


def test_long_experiments_are_decoded_in_smaller_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, other = problem(3, 3), problem(3, 40)
    decoder = CheckpointDecoder.of(trained.env, saved(trained, tmp_path / "w.pt"), other.dem)
    shots = sample(other, 100, 1).detection_events
    whole, sizes = decoder.decode(shots), []
    log_odds = decoder.log_odds
    monkeypatch.setattr("autoqec.decoders.decoding.MAX_CHUNK_VALUES", 10 * other.graph.n_edges)
    monkeypatch.setattr(decoder, "log_odds", lambda part: sizes.append(len(part)) or log_odds(part))
    assert np.array_equal(decoder.decode(shots), whole) and sizes == [10] * 10


def test_lattice_steps_are_those_of_the_circuit() -> None:
    """Positions do not depend on the units of the coordinates; two coordinates are (x, t)."""
    coordinates = torch.tensor([[2.0, 4.0, 0.0], [4.0, 2.0, 1.0], [8.0, 4.0, 3.0]])
    points = [(0, 1, 0), (1, 0, 1), (3, 1, 3)]
    assert local.lattice_points(coordinates) == points
    assert local.lattice_points(0.25 * coordinates - 7) == points
    assert local.lattice_points(torch.tensor([[1.0, 0.0], [3.0, 2.0]])) == [(0, 0, 0), (1, 0, 1)]
    with pytest.raises(ValueError, match="use `mlp` or `gnn`"):
        local.lattice_points(torch.zeros(5, 0))


def test_in_sector_weights_start_at_zero_for_fine_tuning() -> None:
    prob = problem(3, 3)
    config = {"type": "local", "local": {"hidden": 8, "inputs": "all_in_finetuning"}}
    model = compile_predecoder(parse_dsl(config), prob, seed=1)
    for part in model.body.classes.values():
        torch.nn.init.normal_(part.head.weight)
    detections = events(prob)
    silenced = detections.clone()
    silenced[:, prob.graph.in_sector] = 0
    assert not torch.equal(model(detections), model(torch.zeros_like(detections))), "the other sector counts"
    assert torch.equal(model(detections), model(silenced))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(detections).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model(detections), model(silenced)), "they are trained"


def test_in_sector_weights_need_another_sector() -> None:
    config = {"type": "local", "local": {"inputs": "all_in_finetuning"}}
    with pytest.raises(ValueError, match="no other sector"):
        compile_predecoder(parse_dsl(config), Problem.from_env(repetition()), seed=1)


def test_no_shots_and_empty_windows_are_accepted() -> None:
    prob = problem(3, 3)
    dsl = parse_dsl({"type": "local", "local": {"hidden": 4, "space": 0, "time": 0}})
    assert compile_predecoder(DSL, prob, seed=0)(torch.zeros(0, prob.n_detectors)).shape == (0, prob.graph.n_edges)
    assert compile_predecoder(dsl, prob, seed=0)(events(prob)).shape == (64, prob.graph.n_edges)
