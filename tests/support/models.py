"""Fake language models whose answer is a function of the prompt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class FunctionModel:
    """Answers with a function of (system, user) and counts its calls. Thread-safe."""

    model = "function"

    def __init__(self, answer: Callable[[str, str], str], *, delay_s: float = 0.0) -> None:
        self._answer, self._delay = answer, delay_s
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []

    def call(self, system_prompt: str, user_prompt: str) -> str:
        with self._lock:
            self.calls.append((system_prompt, user_prompt))
        time.sleep(self._delay)
        return self._answer(system_prompt, user_prompt)


def replies(*texts: str) -> FunctionModel:
    """Return one text per call, in order; the last one repeats."""
    remaining = list(texts)
    return FunctionModel(lambda system, user: remaining.pop(0) if len(remaining) > 1 else remaining[0])
