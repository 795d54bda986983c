"""Memory that decoding needs at least, checked before a long experiment is built."""

from __future__ import annotations

import stim

from autoqec.contracts.env import EnvSpec
from autoqec.decoders.decoding import CHUNK, MAX_CHUNK_VALUES
from autoqec.decoders.threads import PART
from autoqec.qec.codes import build_source
from autoqec.qec.problem import error_model
from autoqec.qec.problem_memory import MODEL, ModelSize, count_rounds
from autoqec.system.memory import require_bytes

BYTES_PER_VALUE = 8  # of a chunk: log-odds and a copy of them
HINT = "use `autoqec decode --window ROUNDS` with a checkpoint of type `local`, or decode fewer rounds"

# With windows, see docs/results/long-experiments.md.
READ_BYTES = 300  # per detector, while the coordinates are read
KEPT_BYTES = 40  # per detector: coordinates and round
EVENT_BYTES = 3  # per shot and detector of a window: detection events, and those passed on to it and by it
WINDOW_KINDS = 3  # of a repeated circuit: at its start, in the middle and at its end
WINDOW_HINT = "choose a smaller --window, or decode fewer rounds or fewer shots of a file"


def decoding_size(env: EnvSpec, dem: stim.DetectorErrorModel | None) -> ModelSize:
    """Return the size of the model that is decoded: `dem`, or that of the env if it is None."""
    return ModelSize.of_env(env, env.target) if dem is None else ModelSize.of(dem, env)


def require_decode_memory(size: ModelSize, decoders: int, n_shots: int | None = None) -> None:
    """Check that all rounds of an experiment can be decoded at once.

    Args:
        size: The model of the shots.
        decoders: Number of decoders, each with a problem of its own.
        n_shots: Number of shots, if it is known.

    Raises:
        UsageError: The machine has less memory than the model and a chunk of shots need.
    """
    chunk = _chunk_bytes(n_shots, size.n_edges)
    kept = decoders * size.kept_bytes
    needed = {MODEL: kept + max(0, size.build_bytes - size.kept_bytes - chunk), "log-odds of shots": decoders * chunk}
    require_bytes(needed, _experiment(size), HINT)


def require_window_memory(
    env: EnvSpec, dem: stim.DetectorErrorModel | None, rounds: int, decoders: int, n_shots: int | None = None
) -> None:
    """Check that an experiment can be decoded in windows.

    Args:
        env: The env that the checkpoint was trained on.
        dem: The model of the shots; that of the env if it is None.
        rounds: Rounds of a window that are matched together.
        decoders: Number of decoders, each with windows of its own.
        n_shots: Number of shots, if it is known.

    Raises:
        UsageError: The machine has less memory than the detectors, the graphs of windows and the shots need.
    """
    size = decoding_size(env, dem)
    require_bytes(window_bytes(env, dem, rounds, decoders, n_shots), _experiment(size), WINDOW_HINT)


def window_bytes(
    env: EnvSpec, dem: stim.DetectorErrorModel | None, rounds: int, decoders: int, n_shots: int | None = None
) -> dict[str, float]:
    """Return what decoding in windows needs at least, by what needs it; see `require_window_memory`."""
    size, trained = decoding_size(env, dem), decoding_size(env, None)
    n_rounds = max(1, count_rounds(error_model(build_source(env, env.target), env) if dem is None else dem))
    share = min(1.0, rounds / n_rounds)
    kinds = 1 if rounds >= n_rounds else min(WINDOW_KINDS, 1 - (rounds - n_rounds) // (rounds // 2))
    chunk = decoders * _chunk_bytes(n_shots, share * size.n_edges)
    events = (
        0.0 if n_shots is None else (1 / 8 + EVENT_BYTES * share) * size.n_detectors * min(n_shots, decoders * PART)
    )
    building = max(0.0, share * (size.build_bytes - size.kept_bytes) - chunk - events)
    return {
        "model and graph of the checkpoint's env": trained.kept_bytes,
        "coordinates of detectors": size.n_detectors * (READ_BYTES + KEPT_BYTES * (decoders - 1)),
        "graphs of windows": decoders * kinds * share * size.kept_bytes + building,
        "detection events": events,
        "log-odds of shots": chunk,
    }


def _chunk_bytes(n_shots: int | None, n_edges: float) -> float:
    """Return the memory of the log-odds that are computed at once."""
    shots = CHUNK if n_shots is None else min(CHUNK, n_shots)
    return BYTES_PER_VALUE * min(shots * n_edges, MAX_CHUNK_VALUES)


def _experiment(size: ModelSize) -> str:
    return f"experiment of {size.n_detectors:,} detectors and {size.n_errors:,} error mechanisms"
