"""The decoders of the packaged board, as sinter decoders: each is built from a detector error model alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import sinter
import stim

from autoqec.contracts.env import CORRELATED, BpSettings
from autoqec.errors import UsageError
from autoqec.extensions.board.circuits import BLOCK_SHOTS, TRAINING_BLOCKS, TRAINING_SEED, Model, dem_problem
from autoqec.extensions.recorded.estimation import estimate_dem
from autoqec.qec.bp import MIN_CHANNEL_PROB, PostProcessing, make_ldpc
from autoqec.qec.external_decoders import without_separators
from autoqec.qec.graph import TannerGraph, sector_graph, tanner_graph
from autoqec.qec.problem import detector_coordinates, incidence_matrices, matching_obstacle, read_mechanisms
from autoqec.qec.sampling import pack, unpack

TUNED = BpSettings(iterations=100, method="minimum_sum", scaling=0.9, order=10)
# Pinned by the measured-LER tier of unitaryfoundation/qldpc-challenge.
CHALLENGE = BpSettings(iterations=30, method="minimum_sum", scaling=0.625, order=10)
FAST = BpSettings(iterations=30, method="minimum_sum", scaling=0.75, order=0)


@dataclass(frozen=True)
class Decoder(sinter.Decoder):  # type: ignore[misc]
    """A sinter decoder: `build(dem)` returns uint8 [n, ceil(n_detectors / 8)] -> uint8 [n, ceil(n_observables / 8)]."""

    build: Callable[[stim.DetectorErrorModel], Callable[[np.ndarray], np.ndarray]]

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        """Build the decoder for a model."""
        return _Compiled(self.build(dem))


class _Compiled(sinter.CompiledDecoder):  # type: ignore[misc]
    def __init__(self, decode: Callable[[np.ndarray], np.ndarray]) -> None:
        self._decode = decode

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> np.ndarray:
        return self._decode(bit_packed_detection_event_data)


def decoders() -> dict[str, sinter.Decoder]:
    """Return the decoders by name; what an optional package provides is imported when it is compiled."""
    return {
        "mwpm": Decoder(lambda dem: matching(dem, correlated=False)),
        CORRELATED: Decoder(lambda dem: matching(dem, correlated=True)),
        "mwpm_estimated": Decoder(lambda dem: matching(_estimated(dem), correlated=False)),
        "bposd0": Decoder(lambda dem: _bp(dem, "bposd", FAST)),
        "bposd_cs10": Decoder(lambda dem: _bp(dem, "bposd", TUNED)),
        "bposd_cs10_qldpc": Decoder(lambda dem: _bp(dem, "bposd", CHALLENGE)),
        "bplsd0": Decoder(lambda dem: _bp(dem, "bplsd", FAST)),
        "bposd_cs10_sector": Decoder(lambda dem: _sector_bp(dem, "bposd", TUNED)),
        "bplsd0_sector": Decoder(lambda dem: _sector_bp(dem, "bplsd", FAST)),
        "union_find": Decoder(_union_find),
        "fusion_blossom": Decoder(_fusion_blossom),
        "tesseract_short": Decoder(lambda dem: _tesseract(dem, "tesseract-short-beam")),
        "tesseract_long": Decoder(lambda dem: _tesseract(dem, "tesseract-long-beam")),
        "gnn_graphsage": Decoder(_gnn),
    }


def matching(dem: stim.DetectorErrorModel, *, correlated: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Build PyMatching on all detectors of a decomposed model; UsageError if it has no matching graph."""
    import pymatching

    _check_matchable(dem)
    graph = pymatching.Matching.from_detector_error_model(dem, enable_correlations=correlated)

    def decode(events: np.ndarray) -> np.ndarray:
        return graph.decode_batch(
            events, bit_packed_shots=True, bit_packed_predictions=True, enable_correlations=correlated
        )

    return decode


def _check_matchable(dem: stim.DetectorErrorModel) -> None:
    obstacle = matching_obstacle(read_mechanisms(dem)[1])
    if obstacle is not None:
        raise UsageError(f"the circuit has no matching graph: {obstacle}")


def _estimated(dem: stim.DetectorErrorModel) -> stim.DetectorErrorModel:
    """Return the model with probabilities estimated from detection events of shots that no measurement draws."""
    _check_matchable(dem)
    model = Model.of_dem(dem, matchable=True)
    parts = (model.sample(TRAINING_SEED, block).detection_events for block in range(TRAINING_BLOCKS))
    return estimate_dem(dem_problem(dem), parts, TRAINING_BLOCKS * BLOCK_SHOTS)


def _tanner_graph(dem: stim.DetectorErrorModel) -> TannerGraph:
    probs, mechanisms = read_mechanisms(dem)
    H, L = incidence_matrices(mechanisms, dem.num_detectors, dem.num_observables)
    return tanner_graph(H, L, probs, "board")


def _bp(
    dem: stim.DetectorErrorModel, post_processing: PostProcessing, settings: BpSettings
) -> Callable[[np.ndarray], np.ndarray]:
    graph = _tanner_graph(dem)
    return _by_mechanisms(graph, make_ldpc(graph, post_processing, settings).decode)


def _sector_bp(
    dem: stim.DetectorErrorModel, post_processing: PostProcessing, settings: BpSettings
) -> Callable[[np.ndarray], np.ndarray]:
    """Build a decoder of the detectors of one sector, on which error mechanisms with the same flips are one variable.

    The last coordinate of a detector is its sector. Decoded is the one that detects every flip of an observable.
    """
    joint = _tanner_graph(dem)
    last = detector_coordinates(dem, dem.num_detectors)[:, -1:].ravel()
    sectors = [graph for value in np.unique(last) if (graph := _detecting(joint, last == value)) is not None]
    if len(sectors) != 1 or not len(sectors[0].out_of_sector):
        raise UsageError("no last coordinate of detectors names a sector that detects the flips of every observable")
    (graph,) = sectors
    by_mechanisms = _by_mechanisms(graph, make_ldpc(graph, post_processing, settings).decode)

    def decode(events: np.ndarray) -> np.ndarray:
        return by_mechanisms(pack(unpack(events, dem.num_detectors)[:, graph.in_sector].astype(bool)))

    return decode


def _detecting(joint: TannerGraph, mask: np.ndarray) -> TannerGraph | None:
    """Return the graph of the detectors in `mask`; None if they do not detect every flip of an observable."""
    try:
        return sector_graph(joint, mask, "board")
    except UsageError:
        return None


def _union_find(dem: stim.DetectorErrorModel) -> Callable[[np.ndarray], np.ndarray]:
    """Build ldpc's weighted union-find, with matrix inversion in clusters, on all error mechanisms."""
    from ldpc.union_find_decoder import UnionFindDecoder

    graph = _tanner_graph(dem)
    make: Any = UnionFindDecoder  # the types that ldpc ships have no arguments
    decoder = make(graph.check_matrix, uf_method="inversion")
    prior = np.clip(graph.prior, MIN_CHANNEL_PROB, 1 - MIN_CHANNEL_PROB)
    weights = np.log((1 - prior) / prior)
    return _by_mechanisms(graph, lambda syndrome: decoder.decode(syndrome, weights))


def _by_mechanisms(graph: TannerGraph, decode_one: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Wrap a decoder of one syndrome, uint8 [n_detectors], to error mechanisms, uint8 [n_mechanisms]."""
    observables = graph.observables.astype(bool)

    def decode(events: np.ndarray) -> np.ndarray:
        syndromes = unpack(events, graph.check_matrix.shape[0])
        flips = [np.bitwise_xor.reduce(observables[np.nonzero(decode_one(row))[0]], axis=0) for row in syndromes]
        return pack(np.array(flips, dtype=bool).reshape(len(syndromes), observables.shape[1]))

    return decode


def _fusion_blossom(dem: stim.DetectorErrorModel) -> Callable[[np.ndarray], np.ndarray]:
    _check_matchable(dem)
    return _compiled(sinter.BUILT_IN_DECODERS["fusion_blossom"], dem)


def _tesseract(dem: stim.DetectorErrorModel, name: str) -> Callable[[np.ndarray], np.ndarray]:
    import tesseract_decoder

    return _compiled(tesseract_decoder.make_tesseract_sinter_decoders_dict()[name], without_separators(dem))


def _gnn(dem: stim.DetectorErrorModel) -> Callable[[np.ndarray], np.ndarray]:
    # By name: no extra of autoqec declares it, because it needs torch-geometric.
    package: Any = import_module("gnn_decoders")
    return _compiled(package.GraphSAGEDecoder(seed=1, device="cpu"), dem)


def _compiled(decoder: sinter.Decoder, dem: stim.DetectorErrorModel) -> Callable[[np.ndarray], np.ndarray]:
    compiled = decoder.compile_decoder_for_dem(dem=dem)

    def decode(events: np.ndarray) -> np.ndarray:
        return compiled.decode_shots_bit_packed(bit_packed_detection_event_data=events)

    return decode
