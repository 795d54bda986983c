"""Hashes of circuits in checkpoints and runs, and why one differs from that of an env."""

from __future__ import annotations

import hashlib

import stim

from autoqec.contracts.env import EnvSpec, Si1000Noise
from autoqec.errors import ContractError
from autoqec.qec.codes import Source, build_source
from autoqec.qec.si1000 import MAX_UNROLLED

OLDER_VERSION = (
    f"an earlier version of AutoQEC wrote this SI1000 circuit of more than {MAX_UNROLLED} rounds without a loop, "
    "so that its hash and the order of its error mechanisms differ"
)
OLDER_VERSION_HINT = "check out or install the version that made it, or start a new run with the env"


def circuit_sha256(source: Source) -> str:
    """Return the SHA-256 of the text of a circuit or detector error model."""
    return hashlib.sha256(str(source).encode()).hexdigest()


def written_by_older_version(recorded: str | None, env: EnvSpec) -> bool:
    """Return whether a hash is that of an env's circuit at the target p as written before it had a loop (ADR 20)."""
    return isinstance(env.noise, Si1000Noise) and _is_unrolled(recorded, build_source(env, env.target))


def require_circuit(recorded: str | None, env: EnvSpec, source: Source, location: str) -> None:
    """Check that a checkpoint was made for a circuit.

    Args:
        recorded: SHA-256 of the checkpoint's circuit; None if it has none.
        env: The env of `source`.
        source: The circuit that is decoded.
        location: Where the checkpoint lies.

    Raises:
        ContractError: It was made for another one.
    """
    expected = circuit_sha256(source)
    if recorded == expected:
        return
    old = "(none)" if recorded is None else recorded[:12]
    message = f"checkpoint was made for circuit {old}, this env's circuit is {expected[:12]}"
    if isinstance(env.noise, Si1000Noise) and _is_unrolled(recorded, source):
        raise ContractError(f"{message}: {OLDER_VERSION}", location=location, hint=OLDER_VERSION_HINT)
    raise ContractError(message, location=location, hint="use the env the checkpoint was trained on")


def _is_unrolled(recorded: str | None, source: Source) -> bool:
    if not isinstance(source, stim.Circuit) or not any(isinstance(each, stim.CircuitRepeatBlock) for each in source):
        return False
    return circuit_sha256(source.flattened()) == recorded
