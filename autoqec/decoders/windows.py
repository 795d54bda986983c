"""Decoding of long experiments in windows over time, with the networks and graphs of a few windows.

Each window is decoded with a buffer of later rounds; only corrections that begin in its first half are final, and their
detection events are passed on to the next window (overlapping recovery, arXiv:quant-ph/0110143). The network reads the
detection events of the experiment, the matching what earlier windows left of them. Windows that equal each other up to
a shift in time, as those of a repeated circuit do, share one network and one matching graph. The model's errors are
read window by window, the body of a loop again in each repetition; only coordinates of detectors grow with the rounds.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.contracts.dsl import LocalConfig
from autoqec.contracts.env import EnvSpec
from autoqec.decoders import checkpoint
from autoqec.decoders.decoding import (
    CHUNK,
    MAX_CHUNK_VALUES,
    CheckpointDecoder,
    check_detection_events,
    require_coordinates,
    unexplained_shots,
)
from autoqec.errors import UsageError
from autoqec.qec.diagnosis import EventModel
from autoqec.qec.error_stream import OUTSIDE, SEPARATOR, Errors, ErrorStream, SectorFinder, concatenate
from autoqec.qec.event_statistics import statistics_of_first
from autoqec.qec.problem import Problem, detector_coordinates
from autoqec.qec.sampling import pack
from autoqec.qec.weighted_mwpm import MAX_LOG_ODDS, WeightedMatching

CHECKED_DETECTORS = 1024  # whose events are compared with the model; tables of pairs take 8 MB each
MAX_CACHED = 8  # windows kept at once; a repeated circuit has three kinds


@dataclass(frozen=True)
class Window:
    """Rounds of one window: it reads `[low, high)`, matches `[first, last)`, and decides edges that begin before `end`.

    The network reads some rounds around those that are matched.
    """

    low: int
    high: int
    first: int
    last: int
    end: int


class WindowGraph:
    """Network and matching graph of a window, with detectors numbered within it.

    Args:
        window: The window.
        network: The checkpoint on the rounds that the window reads.
        rounds: int [n_detectors], the round of each detector of the window.
    """

    def __init__(self, window: Window, network: CheckpointDecoder, rounds: np.ndarray) -> None:
        graph = network.problem.matching_graph
        ends, exists = graph.endpoints, graph.endpoints >= 0
        starts = np.where(exists, rounds[ends], window.high).min(axis=1)
        self.network = network
        self.edges = np.nonzero((starts >= window.first) & (starts < window.last))[0]
        in_window = (rounds[graph.in_sector] >= window.first) & (rounds[graph.in_sector] < window.last)
        self.detectors = graph.in_sector[in_window]
        pairs = [(edge, end) for edge, row in enumerate(ends[self.edges]) for end in row[row >= 0]]
        columns, ids = np.array(pairs, int).reshape(-1, 2).T
        flips = sp.csr_matrix((np.ones(len(ids), np.int32), (columns, ids)), (len(self.edges), len(rounds)))
        self.matching = WeightedMatching(flips[:, self.detectors].T, max_weight=MAX_LOG_ODDS)
        self.final = starts[self.edges] < window.end
        self.flips = flips[self.final]
        self.observables = graph.observables[self.edges[self.final]].astype(np.int32)
        self.n_unknown_edges = int(np.isin(self.edges[self.final], network.unknown_edges).sum())

    def decode(self, events: np.ndarray, passed_on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decode a window of each shot.

        Args:
            events: uint8 [n, n_detectors], detection events.
            passed_on: uint8 [n, n_detectors], what the corrections of earlier windows flip.

        Returns:
            What final corrections flip: observables, bool [n, n_observables], and detectors, uint8 [n, n_detectors].
        """
        flipped = np.empty((len(events), self.observables.shape[1]), bool)
        explained = np.empty_like(events)
        chunk = max(1, min(CHUNK, MAX_CHUNK_VALUES // self.network.problem.matching_graph.n_edges))
        for start in range(0, len(events), chunk):
            part = slice(start, start + chunk)
            weights = -self.network.log_odds(pack(events[part]))[:, self.edges]
            syndromes = (events[part] ^ passed_on[part])[:, self.detectors]
            final = self.matching.decode_batch(syndromes, weights)[:, self.final]
            flipped[part] = final @ self.observables & 1
            explained[part] = (self.flips.T @ final.T).T & 1
        return flipped, explained


class WindowedDecoder:
    """Decodes with a translation-invariant checkpoint in windows over time; a gate of the checkpoint is not used.

    Args:
        env: The env that the checkpoint was trained on.
        path: The checkpoint.
        dem: The detector error model of the shots; its last coordinate of a detector is time.
        rounds_per_window: Rounds that are matched together, at least 2.

    Attributes:
        n_detectors: Number of detectors.
        n_observables: Number of observables.
        other_circuit: True: the gain of decoding in windows was not verified.

    Raises:
        ContractError: The checkpoint is malformed, or its weights belong to one circuit.
        UsageError: The model has no coordinates, or the predecoder is not decoded by soft matching.
    """

    other_circuit = True

    def __init__(self, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel, rounds_per_window: int) -> None:
        _, dsl = checkpoint.read_translation_invariant(path)
        if env.backend != "mwpm" or dsl.output_mode != "soft_priors":
            message = f"decode output mode soft_priors with backend mwpm, not {dsl.output_mode} with {env.backend}"
            raise UsageError(message, location="windows", hint="decode all rounds at once: leave out --window")
        assert isinstance(dsl.block, LocalConfig)
        self._problem, self._path = Problem.from_env(env), path
        self.n_detectors, self.n_observables = dem.num_detectors, dem.num_observables
        self._coordinates = detector_coordinates(dem, self.n_detectors)
        require_coordinates(self._coordinates)
        self._time_axis = min(self._coordinates.shape[1], 3) - 1
        self._times, self._rounds = np.unique(self._coordinates[:, self._time_axis], return_inverse=True)
        self._errors = ErrorStream(dem)
        earliest, span, sector = array("q"), 0, SectorFinder(self.n_detectors)
        for block in self._errors:
            sector.add(block)
            first, last = block.reach(self._rounds)
            earliest.append(int(first.min()))
            span = max(span, int((last - first).max()))
        # A window need not have errors that flip observables.
        self._in_sector = sector.found()
        if not self._in_sector.any():
            message, hint = "no detectable error flips an observable", "check OBSERVABLE_INCLUDE"
            raise UsageError(message, location="detector error model", hint=hint)
        # A window's errors are read up to the last block in which one begins before its end.
        self._next_earliest = np.minimum.accumulate(np.array(earliest)[::-1])[::-1]
        # An error that begins in the first half of a window must end within the rounds that the window reads.
        self._n_rounds_window, self._margin = rounds_per_window, max(dsl.block.time + 2, span)
        self._graphs: OrderedDict[tuple[bytes, ...], WindowGraph] = OrderedDict()
        self._unknown_edges: dict[Window, int] = {}

    @property
    def windows(self) -> list[Window]:
        """Return the windows in order of time; the last one decides all edges that are left."""
        n_rounds, size, margin = len(self._times), self._n_rounds_window, self._margin
        found = []
        for first in range(0, n_rounds, size // 2):
            last = min(first + size, n_rounds)
            end = n_rounds if last == n_rounds else first + size // 2
            found.append(Window(max(0, first - margin), min(n_rounds, last + margin), first, last, end))
            if last == n_rounds:
                break
        return found

    def event_model(self) -> EventModel:
        """Return what the model says of the detection events of its first detectors."""
        statistics = statistics_of_first(self._errors, min(self.n_detectors, CHECKED_DETECTORS))
        return EventModel(statistics, lambda: self._rounds)

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables].

        Raises:
            ContractError: The network fails, or its outputs are not finite.
            UsageError: The shots are of another circuit, or no combination of the model's errors explains one.
        """
        check_detection_events(detection_events, self.n_detectors)
        predictions = np.zeros((len(detection_events), self.n_observables), bool)
        known, explained = np.zeros(0, int), np.zeros((len(detection_events), 0), np.uint8)
        for ids, graph in self._window_graphs():
            events = detection_events[:, ids >> 3] >> (ids & 7).astype(np.uint8) & 1
            passed_on = np.zeros_like(events)
            _, here, there = np.intersect1d(ids, known, assume_unique=True, return_indices=True)
            passed_on[:, here] = explained[:, there]
            with unexplained_shots():
                flipped, final = graph.decode(events, passed_on)
            predictions ^= flipped
            known, explained = ids, passed_on ^ final
        return predictions

    @property
    def n_unknown_edges(self) -> int:
        """Return the number of edges decoded so far whose class was not trained; they keep the priors of the model."""
        return sum(self._unknown_edges.values())

    def _window_graphs(self) -> Iterator[tuple[np.ndarray, WindowGraph]]:
        """Yield the detectors of each window, int [n], and its graph."""
        for window, errors in self._window_errors():
            ids = np.nonzero((self._rounds >= window.low) & (self._rounds < window.high))[0]
            if not self._in_sector[ids].any():
                continue
            graph = self._graph(window, ids, errors)
            self._unknown_edges[window] = graph.n_unknown_edges
            yield ids, graph

    def _window_errors(self) -> Iterator[tuple[Window, Errors]]:
        """Yield each window with the errors that flip a detector in it, in the model's order."""
        blocks, held, n_read = iter(self._errors), Errors.none(), 0
        for window in self.windows:
            n_needed = int(np.searchsorted(self._next_earliest, window.high))
            held = concatenate([held, *islice(blocks, n_needed - n_read)])
            n_read = n_needed
            first, last = held.reach(self._rounds)
            kept = last >= window.low  # no later window reads earlier rounds
            held, first = held.selected(kept), first[kept]
            yield window, held.selected(first < window.high)

    def _graph(self, window: Window, ids: np.ndarray, errors: Errors) -> WindowGraph:
        """Return the graph of a window; an earlier one, if it equals it up to a shift in time."""
        number = np.full(self.n_detectors + 1, OUTSIDE)
        number[ids] = np.arange(len(ids))
        targets = np.where(errors.targets >= 0, number[errors.targets], errors.targets)
        errors = Errors(errors.probabilities, targets, errors.lengths)
        coordinates = self._coordinates[ids]
        coordinates[:, self._time_axis] -= self._times[window.low]
        shifted = Window(*(each - window.low for each in vars(window).values()))
        window_array = np.array([*vars(shifted).values()])
        in_sector = self._in_sector[ids]
        parts = (errors.targets, errors.lengths, errors.probabilities, coordinates, window_array, in_sector)
        key = tuple(part.tobytes() for part in parts)
        if key not in self._graphs:
            dem = _model(errors, coordinates, self.n_observables)
            problem = self._problem.with_other_dem(dem, in_sector)
            network = CheckpointDecoder.of_other_circuit(problem, self._path, gated=False)
            self._graphs[key] = WindowGraph(shifted, network, self._rounds[ids] - window.low)
        self._graphs.move_to_end(key)
        if len(self._graphs) > MAX_CACHED:
            self._graphs.popitem(last=False)
        return self._graphs[key]


def _model(errors: Errors, coordinates: np.ndarray, n_observables: int) -> stim.DetectorErrorModel:
    """Return the model of a window: errors without their parts outside it."""
    dem = stim.DetectorErrorModel()
    ends = np.cumsum(errors.lengths)
    for p, start, end in zip(errors.probabilities.tolist(), ends - errors.lengths, ends, strict=True):
        parts: list[list[stim.DemTarget]] = [[]]
        for target in errors.targets[start:end].tolist():
            if target == SEPARATOR:
                parts.append([])
            elif target >= 0:
                parts[-1].append(stim.target_relative_detector_id(target))
            elif target != OUTSIDE:
                parts[-1].append(stim.target_logical_observable_id(-2 - target))
        seen = [part for part in parts if any(each.is_relative_detector_id() for each in part)]
        joined = [each for part in seen for each in (stim.target_separator(), *part)][1:]
        if joined:
            dem.append("error", p, joined)
    for detector, position in enumerate(coordinates.tolist()):
        dem.append("detector", position, [stim.target_relative_detector_id(detector)])
    if n_observables:
        dem.append("logical_observable", [], [stim.target_logical_observable_id(n_observables - 1)])
    return dem
