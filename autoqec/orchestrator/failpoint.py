"""Named places of a round's life at which a test may kill the process, as a power cut would."""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "AUTOQEC_FAILPOINT"
PLACES = (
    "run_created",
    "begun",
    "ideated",
    "planned",
    "branched",
    "edited",
    "coded",
    "job_ordered",
    "job_queued",
    "job_numbered",
    "measured",
    "pointer_committed",
    "nominated",
    "charged",
    "judged",
    "row_appended",
    "views_written",
    "pinned",
    "worktree_removed",
    "recovery_swept",
    "recovery_worktree_removed",
    "recovery_refs_moved",
    "recovery_row_appended",
    "recovery_views_written",
    "garbage_row_appended",
    "garbage_refs_dropped",
    "garbage_recorded",
)
_reached: Counter[str] = Counter()


def reach(place: str) -> None:
    """SIGKILL to this process where AUTOQEC_FAILPOINT is `place`, or `place@N` at the N-th time it is reached."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    assert place in PLACES, place
    _reached[place] += 1
    if wanted in (place, f"{place}@{_reached[place]}"):
        os.kill(os.getpid(), signal.SIGKILL)
