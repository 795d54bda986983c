"""Language models for tests of what stands above the protocol: their answer is a function of the prompt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class FunctionModel:
    """Answers by a function of (system, user); counts its calls. May be shared by threads."""

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
    """One text a call, in order; the last one again and again."""
    left = list(texts)
    return FunctionModel(lambda system, user: left.pop(0) if len(left) > 1 else left[0])
