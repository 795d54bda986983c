"""Protection of starting processes from signals that a terminal sends to its whole process group."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def block_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Block these signals in this thread while the block runs; a process started in it begins with them blocked.

    Without this, Ctrl-C kills a process that is just being started: until its own session begins it is in the
    terminal's group, and Python has restored the default action for it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
