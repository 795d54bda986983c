"""One training round: loops over sampler, algorithm and agent, in a sandboxed child of a trusted parent.

The loops can be imported from here; torch is imported when one of them is accessed, not with this package.
"""

from __future__ import annotations

from typing import Any

_LOOPS = {
    "MinibatchRl": "minibatch",
    "MinibatchRlEval": "minibatch_eval",
    "SyncRl": "sync",
    "SyncRlEval": "sync_eval",
    "AsyncRl": "async",
    "AsyncRlEval": "async_eval",
}

__all__ = ["AsyncRl", "AsyncRlEval", "MinibatchRl", "MinibatchRlEval", "SyncRl", "SyncRlEval"]


def __getattr__(name: str) -> Any:
    if name not in _LOOPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autoqec.runner.minibatch import find_loop

    return find_loop(_LOOPS[name])
