"""Memory that decoding needs at least, checked before a long experiment is built."""

from __future__ import annotations

import stim

from autoqec.contracts.env import EnvSpec
from autoqec.decoders.decoding import CHUNK, MAX_CHUNK_VALUES
from autoqec.qec.memory import MODEL, ModelSize
from autoqec.system.memory import require_bytes

BYTES_PER_VALUE = 8  # of a chunk: log-odds and a copy of them
HINT = "use `autoqec decode --window ROUNDS` with a checkpoint of type `local`, or decode fewer rounds"


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
    shots = CHUNK if n_shots is None else min(CHUNK, n_shots)
    chunk = BYTES_PER_VALUE * min(shots * size.n_edges, MAX_CHUNK_VALUES)
    kept = decoders * size.kept_bytes
    needed = {MODEL: kept + max(0, size.build_bytes - size.kept_bytes - chunk), "log-odds of shots": decoders * chunk}
    location = f"experiment of {size.n_detectors:,} detectors and {size.n_errors:,} error mechanisms"
    require_bytes(needed, location, HINT)
