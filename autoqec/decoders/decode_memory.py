"""Memory that decoding needs at least, checked before a long experiment is built."""

from __future__ import annotations

import stim

from autoqec.contracts.env import EnvSpec
from autoqec.decoders.decoding import CHUNK, MAX_CHUNK_VALUES
from autoqec.qec.memory import MODEL, ModelSize
from autoqec.system.memory import require_bytes

BYTES_PER_VALUE = 8  # of a chunk: log-odds and a copy of them
HINT = "use `autoqec decode --window ROUNDS` with a checkpoint of type `local`, or decode fewer rounds"


def require_decode_memory(env: EnvSpec, dem: stim.DetectorErrorModel | None, threads: int) -> None:
    """Check that all rounds of an experiment can be decoded at once.

    Args:
        env: The env of the checkpoint.
        dem: The model of the shots; None for the env's.
        threads: Decoders, each with a problem of its own.

    Raises:
        UsageError: The machine has less memory than the model and a chunk of shots need.
    """
    size = ModelSize.of_env(env, env.target) if dem is None else ModelSize.of(dem, env.backend)
    chunk = BYTES_PER_VALUE * min(CHUNK * size.n_edges, MAX_CHUNK_VALUES)
    kept = threads * size.kept_bytes
    needed = {MODEL: kept + max(0, size.build_bytes - size.kept_bytes - chunk), "log-odds of shots": threads * chunk}
    location = f"experiment of {size.n_detectors:,} detectors and {size.n_errors:,} error mechanisms"
    require_bytes(needed, location, HINT)
