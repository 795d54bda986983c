"""One training round: loops over sampler, algorithm and agent, in a sandboxed child of a trusted parent.

The loops can be imported from here; torch is imported when one of them is accessed, not with this package.
"""

from __future__ import annotations

from typing import Any

_LOOPS = {
    "MinibatchRl": "autoqec.runner.loops.minibatch",
    "MinibatchRlEval": "autoqec.runner.loops.minibatch",
    "SyncRl": "autoqec.extensions.training_loops.sync",
    "SyncRlEval": "autoqec.extensions.training_loops.sync",
    "AsyncRl": "autoqec.extensions.training_loops.async_rl",
    "AsyncRlEval": "autoqec.extensions.training_loops.async_rl",
}

__all__ = ["AsyncRl", "AsyncRlEval", "MinibatchRl", "MinibatchRlEval", "SyncRl", "SyncRlEval"]


def __getattr__(name: str) -> Any:
    if name not in _LOOPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LOOPS[name]), name)
