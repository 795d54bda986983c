"""Failpoints: named places in a round at which a test can kill the process, as a power failure would."""

from __future__ import annotations

import os
import signal
from collections import Counter

FAILPOINT_VARIABLE = "AUTOQEC_FAILPOINT"
FAILPOINTS = (
    "run_created", "begun", "ideated", "planned", "branched", "edited", "coded", "job_ordered", "job_queued",
    "job_numbered", "measured", "pointer_committed", "nominated", "test_registered", "verified", "row_appended",
    "views_written", "pinned", "worktree_removed", "recovery_pointer_committed", "recovery_swept",
    "recovery_worktree_removed", "recovery_refs_moved", "recovery_row_appended", "recovery_views_written",
    "gc_row_appended", "gc_refs_dropped", "gc_recorded",
)  # fmt: skip
_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kill this process by SIGKILL if AUTOQEC_FAILPOINT is `name`, or `name@N` when it is reached for the N-th time."""
    requested = os.environ.get(FAILPOINT_VARIABLE)
    if requested is None:
        return
    assert name in FAILPOINTS, name
    _hits[name] += 1
    if requested in (name, f"{name}@{_hits[name]}"):
        os.kill(os.getpid(), signal.SIGKILL)
