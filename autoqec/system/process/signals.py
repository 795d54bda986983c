"""What a terminal sends to all of its processes, kept from one that is being started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def block_signals(*numbers: signal.Signals) -> Iterator[None]:
    """These signals wait until the block is left, for this thread; a process started in it begins with them blocked.

    Without it Ctrl-C kills what is just being started: until its own session begins it is in the terminal's group,
    and Python has put the default action back for it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
