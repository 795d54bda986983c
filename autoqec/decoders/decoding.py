"""Decoding with a checkpoint: predecoder and inner decoder on one detector error model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import stim
import torch

from autoqec.contracts.env import EnvSpec
from autoqec.decoders import checkpoint
from autoqec.decoders.base import Predecoder
from autoqec.decoders.gating import make_decoder
from autoqec.decoders.local_forward import LocalForward
from autoqec.decoders.single_shot import SingleShot
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.qec.codes import build_source
from autoqec.qec.graph import DecodingGraph, MatchingGraph, TannerGraph
from autoqec.qec.problem import Problem, detector_coordinates
from autoqec.qec.sampling import unpack

CHUNK = 2048  # shots decoded at once; bounds memory
MAX_CHUNK_VALUES = 2**25  # log-odds computed at once, for long experiments
OTHER_CHECKPOINT_HINT = "use another round's checkpoint"
NO_GATE_HINT = "the checkpoint decodes behind a gate: use one without a gate, or the error model of its env"


class CheckpointDecoder:
    """Decodes detection events with a predecoder and the env's inner decoder.

    Attributes:
        problem: The problem that is decoded.
        shift: float32 [n_edges], difference of the priors from those of the training problem.
        unknown_edges: int [k], edges that the training problem lacks; they keep their own priors.
        n_unknown_edges: Their number.
        decoder: The inner decoder, behind the gate that selects the shots that the predecoder decodes.
        other_circuit: Whether translation-invariant weights decode a distance or number of rounds that the env lacks.
    """

    other_circuit = False

    def __init__(
        self, problem: Problem, training_problem: Problem, model: Predecoder, columns: np.ndarray, path: Path
    ) -> None:
        self.problem, self._model, self._path = problem, model, path
        decoded, trained = (each.variables(model.output_mode).log_odds for each in (problem, training_problem))
        self._columns, self.unknown_edges = columns, np.nonzero(columns < 0)[0]  # column -1 is replaced by the prior
        self.n_unknown_edges = len(self.unknown_edges)
        self._same_edges = np.array_equal(columns, np.arange(len(trained)))
        self._prior = decoded.astype(np.float32)
        self.shift = np.where(columns >= 0, decoded - trained[columns], 0).astype(np.float32)
        self._is_shifted = bool(self.shift.any())
        self.decoder = make_decoder(problem, model.output_mode, model.gate, hint=NO_GATE_HINT)
        self._single_shot = SingleShot.of(model, problem.n_detectors)
        self._local = LocalForward.of(model, problem.n_detectors)

    @classmethod
    def of(
        cls, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel | None = None, *, allow_other_dem: bool = False
    ) -> CheckpointDecoder:
        """Load a checkpoint for a detector error model.

        On another model with the same edges (another error rate), the network's log-odds are shifted by the difference
        of the priors. A translation-invariant predecoder takes models of other distances and numbers of rounds too.

        Args:
            env: The env that the checkpoint was trained on.
            path: The checkpoint.
            dem: The model to decode; by default the env's, at its target p.
            allow_other_dem: Accept a model of the same detectors and observables with other edges (of a device, say).
                Edges of both models get the network's log-odds, the others keep the model's priors.

        Raises:
            ContractError: The checkpoint or the model does not match the env.
        """
        check_fit(env, path, dem)
        training_problem = Problem.from_env(env)
        if dem is not None and dem.num_detectors != training_problem.n_detectors:
            with _model_errors():
                other = training_problem.with_other_dem(dem)
            decoder = cls.of_other_circuit(other, path)
            decoder.other_circuit = not any(_is_circuit_of(each, dem) for each in env.other_members)
            return decoder
        with _checkpoint_errors(path):
            model, dsl = checkpoint.load(path, training_problem)
        with _model_errors():
            problem = training_problem if dem is None else training_problem.with_dem(dem)
        trained, decoded = (each.variables(dsl.output_mode) for each in (training_problem, problem))
        columns = match_edges(decoded, trained)
        same = not (columns < 0).any() and trained.n_edges == decoded.n_edges
        if dem is not None and not same and dsl.translation_invariant and _is_other_circuit(training_problem, dem):
            return cls.of_other_circuit(training_problem.with_other_dem(dem), path)
        if not (columns >= 0).any() or not (same or allow_other_dem):
            raise _mechanisms_error(path, training_problem, problem, int((columns < 0).sum()))
        return cls(problem, training_problem, model, columns, path)

    @classmethod
    def of_other_circuit(cls, problem: Problem, path: Path, *, gated: bool = True) -> CheckpointDecoder:
        """Load translation-invariant weights for a problem of another distance or number of rounds.

        Args:
            problem: The problem to decode.
            path: The checkpoint.
            gated: Whether to use the gate of the checkpoint.

        Raises:
            ContractError: The weights belong to one circuit, or do not fit this one.
            UsageError: The model has no coordinates.
        """
        require_coordinates(problem.coordinates)
        with _checkpoint_errors(path):
            model, known = checkpoint.load_for_other_circuit(path, problem)
        if not gated:
            model.gate = None
        decoder = cls(problem, problem, model, np.where(known, np.arange(len(known)), -1), path)
        decoder.other_circuit = True
        return decoder

    @classmethod
    def of_model(cls, model: Predecoder, problem: Problem) -> CheckpointDecoder:
        """Decode with a predecoder on the problem that it was loaded for."""
        edges = np.arange(problem.variables(model.output_mode).n_edges)
        return cls(problem, problem, model, edges, Path("checkpoint.pt"))

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables].

        Raises:
            ContractError: The network fails, or its outputs are not finite.
            UsageError: The shots are of another circuit, or no combination of the model's errors explains one.
        """
        check_detection_events(detection_events, self.problem.n_detectors)
        if len(detection_events) == 1:
            return self._decode_one(detection_events)
        predictions = np.zeros((len(detection_events), self.problem.n_observables), bool)
        chunk = max(1, min(CHUNK, MAX_CHUNK_VALUES // len(self._prior)))
        for start in range(0, len(detection_events), chunk):
            part = detection_events[start : start + chunk]
            with unexplained_shots():
                predictions[start : start + chunk] = self.decoder.decode_with(part, self.log_odds)
        return predictions

    def _decode_one(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode one shot without the overhead of batches."""
        try:
            return self.decoder.decode_with(detection_events, self.log_odds)
        except ValueError:  # a context manager takes longer than this
            with unexplained_shots():
                raise

    def log_odds(self, detection_events: np.ndarray) -> np.ndarray:
        """Run the network on bit-packed detection events; return float32 [n, n_edges] for the decoded problem."""
        output = self._forward(detection_events)
        if not np.isfinite(output).all():
            raise ContractError(
                "the network's outputs are not finite", location=str(self._path), hint=OTHER_CHECKPOINT_HINT
            )
        if self._same_edges:
            if self._is_shifted:
                output += self.shift
            return output
        log_odds = output[:, self._columns] + self.shift
        log_odds[:, self.unknown_edges] = self._prior[self.unknown_edges]
        return log_odds

    def _forward(self, detection_events: np.ndarray) -> np.ndarray:
        """Return the network's outputs for bit-packed detection events, before `shift`."""
        if self._local is not None:
            return self._local(detection_events)
        if self._single_shot is not None and len(detection_events) == 1:
            return self._single_shot(detection_events[0])[None]
        events = torch.from_numpy(unpack(detection_events, self.problem.n_detectors)).float()
        with torch.no_grad(), _checkpoint_errors(self._path):
            output: np.ndarray = self._model(events).numpy()
        return output


def require_coordinates(coordinates: np.ndarray) -> None:
    """Raise UsageError if detectors, float64 [n_detectors, k], have no positions in space and time."""
    if coordinates.shape[1] < 2 or not coordinates.any():
        raise UsageError(
            "other circuits and windows need detector coordinates (x, y, t), and the model has none",
            location="detector error model",
            hint="create it from a circuit whose DETECTOR instructions have coordinates",
        )


def check_detection_events(detection_events: np.ndarray, n_detectors: int) -> None:
    """Raise UsageError unless detection events are bit-packed, uint8 [n, ceil(n_detectors / 8)]."""
    expected = (len(detection_events), -(-n_detectors // 8))
    if detection_events.shape != expected or detection_events.dtype != np.uint8:
        raise UsageError(
            f"are {detection_events.dtype} {detection_events.shape}, expected bit-packed uint8 {expected}",
            location="detection events",
            hint=f"decode shots of a circuit with {n_detectors} detectors",
        )


@contextmanager
def unexplained_shots() -> Iterator[None]:
    """Report a ValueError of the matching, whose log-odds are finite and of the right shape, as one of the shots."""
    try:
        yield
    except ValueError as error:
        raise UsageError(
            f"no errors of the model explain a shot ({error})",
            location="detection events",
            hint="decode shots of the circuit that the model describes",
        ) from error


def check_fit(env: EnvSpec, path: Path, dem: stim.DetectorErrorModel | None) -> None:
    """Check that a checkpoint was made for the circuit of an env and can decode a model; builds no decoding problem.

    Raises:
        ContractError: It was made for another circuit, or the model is of another size and the weights belong to one
            circuit.
    """
    dsl = checkpoint.read_config(path, env)
    source = build_source(env, env.target)
    sizes = [(each.num_detectors, each.num_observables) for each in (source, dem or source)]
    if sizes[0] == sizes[1] or (dsl.translation_invariant and sizes[0][0] != sizes[1][0]):
        return
    own, other = (f"{n_detectors} detectors, {n_observables} observables" for n_detectors, n_observables in sizes)
    raise ContractError(
        f"the detector error model ({other}) is not that of env `{env.name}` ({own})",
        location=str(path),
        hint="decode shots of the circuit that the env describes; weights of type `local` also fit other distances and "
        "numbers of rounds",
    )


def _is_circuit_of(env: EnvSpec, dem: stim.DetectorErrorModel) -> bool:
    """Return whether a model has the detectors of an env's circuit, at the same positions."""
    source = build_source(env, env.target)
    sizes = (source.num_detectors, source.num_observables)
    own, given = (detector_coordinates(each, sizes[0]) for each in (source, dem))
    return sizes == (dem.num_detectors, dem.num_observables) and np.array_equal(own, given)


def _is_other_circuit(problem: Problem, dem: stim.DetectorErrorModel) -> bool:
    """Return whether as many detectors lie elsewhere: 120 can be those of d=5 with 5 rounds, or of d=3 with 15."""
    coordinates = detector_coordinates(dem, problem.n_detectors)
    return bool(coordinates.any()) and not np.array_equal(coordinates, problem.coordinates)


@contextmanager
def _checkpoint_errors(path: Path) -> Iterator[None]:
    """Report any exception of a network's code as a ContractError of its checkpoint."""
    try:
        yield
    except AutoqecError:
        raise
    except Exception as error:
        message = f"the network fails ({type(error).__name__}: {str(error)[:200]})"
        raise ContractError(message, location=str(path), hint=OTHER_CHECKPOINT_HINT) from error


@contextmanager
def _model_errors() -> Iterator[None]:
    """Report errors of a given model as its own instead of the env's."""
    try:
        yield
    except UsageError as error:
        hint = (
            "create it with `stim analyze_errors --decompose_errors`; probabilities must lie strictly between 0 and 1"
        )
        raise UsageError(error.message, location="detector error model", hint=hint) from error


def match_edges(graph: DecodingGraph, reference: DecodingGraph) -> np.ndarray:
    """Find the edges of a graph in another one, by the detectors and observables that they flip.

    Returns:
        int [graph.n_edges], indices of edges in `reference`; -1 for edges that it lacks.
    """
    index = {key: column for column, key in enumerate(_edge_keys(reference))}
    return np.array([index.get(key, -1) for key in _edge_keys(graph)], int)


def _edge_keys(graph: DecodingGraph) -> list[tuple[tuple[int, ...], bytes, int]]:
    """Return detectors and observables of each edge, and its number among equal ones: a model may repeat an error."""
    if isinstance(graph, MatchingGraph):
        detectors = [tuple(sorted(int(end) for end in ends)) for ends in graph.endpoints]
    else:
        assert isinstance(graph, TannerGraph)
        table = graph.check_matrix
        bounds = zip(table.indptr, table.indptr[1:], strict=False)
        detectors = [tuple(sorted(graph.in_sector[table.indices[start:end]].tolist())) for start, end in bounds]
    count: Counter[tuple[tuple[int, ...], bytes]] = Counter()
    keys = []
    for key in zip(detectors, (flips.tobytes() for flips in graph.observables), strict=True):
        keys.append((*key, count[key]))
        count[key] += 1
    return keys


def _mechanisms_error(path: Path, training_problem: Problem, problem: Problem, n_unknown_edges: int) -> ContractError:
    def describe(each: Problem) -> str:
        return f"{each.n_detectors} detectors, {each.n_observables} observables, {each.n_mechanisms} error mechanisms"

    return ContractError(
        f"the detector error model ({describe(problem)}) is not that of env `{problem.env.name}` "
        f"({describe(training_problem)}); {n_unknown_edges} of its edges are unknown to the network",
        location=str(path),
        hint="accept a model of the same detectors with `autoqec decode --allow-other-dem`",
    )


def read_model(path: Path, env: EnvSpec) -> stim.DetectorErrorModel:
    """Read a detector error model from a `.dem` file, or compute it from a `.stim` circuit for the env's inner decoder.

    Raises:
        UsageError: The file cannot be read, or its model does not suit the inner decoder.
    """
    from autoqec.qec.problem import error_model
    from autoqec.store.files import read_text

    text = read_text(path, what="detector error model", hint="name a .dem or a .stim file")
    try:
        model = stim.Circuit(text) if path.suffix == ".stim" else stim.DetectorErrorModel(text)
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"stim cannot read it ({str(error).strip().splitlines()[0]})",
            location=str(path),
            hint="create a model with `stim analyze_errors --in CIRCUIT --out MODEL.dem`",
        ) from error
    return error_model(model, env)
