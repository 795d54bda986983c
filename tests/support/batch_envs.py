"""A tiny batch environment, and routines at module level so that worker processes can import them."""

from __future__ import annotations

import copy
import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass
class ToyState:
    number: float
    path: list[float] = field(default_factory=list)
    last_task_info: dict[str, Any] | None = None


class ToyEnv:
    """The state is a number to which actions are added; done after three actions."""

    def __init__(self, number: float) -> None:
        self.start = number
        self.state = ToyState(number)
        self.raw: list[Any] = []
        self.renders: list[dict[str, Any]] = []

    @property
    def signature(self) -> str:
        return str(round(self.state.number, 6))

    def reset(self) -> ToyState:
        self.state = ToyState(self.start)
        return self.state

    def step(self, action: float, stepper: Any, **raw: Any) -> tuple[ToyState, bool]:
        self.raw.append(raw)
        stepper(self.state, action)
        return self.state, len(self.state.path) >= 3

    def clone(self) -> ToyEnv:
        return copy.deepcopy(self)

    def render(self, mode: Any) -> Any:
        import matplotlib.pyplot as plt

        self.renders.append(dict(mode))
        return plt.figure()


def add(state: ToyState, action: float) -> None:
    state.number += action
    state.path.append(action)


class Observer:
    def observe(self, state: ToyState) -> list[float]:
        return [state.number, float(len(state.path))]


class Tensorizer:
    def tensorize(self, observation: list[float]) -> torch.Tensor:
        import torch  # local import, so that workers start quickly

        return torch.tensor(observation, dtype=torch.float64)


def square(state: ToyState) -> tuple[float, dict[str, Any]]:
    return state.number**2, {"number": state.number, "curve": [state.number, state.number / 2]}


def square_stored(state: ToyState) -> tuple[float, dict[str, Any]]:
    loss, info = square(state)
    state.last_task_info = info
    return loss, info


def reciprocal(state: ToyState) -> tuple[float, dict[str, Any]]:
    return 1 / state.number, {}


def noisy(state: ToyState) -> tuple[float, dict[str, Any]]:
    print("a routine that prints")
    os.write(1, b"even past Python's streams\n")
    return state.number, {}


def suicidal(state: ToyState) -> tuple[float, dict[str, Any]]:
    if state.number == 2:
        os._exit(9)
    return state.number, {}


def not_a_number(state: ToyState) -> tuple[float, dict[str, Any]]:
    return (math.nan if state.number == 1 else state.number), {}


def process_of(state: ToyState) -> tuple[float, dict[str, Any]]:
    time.sleep(0.05)
    return state.number, {"pid": os.getpid(), "began": time.monotonic()}


class FakeLogger:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def log_metric(self, name: str, value: float, step: int | None = None) -> None:
        assert math.isfinite(value)
        self.events.append(("metric", name))

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        self.events.append(("figure", name))

    def log_image(self, name: str, image: bytes, step: int | None = None) -> None:
        assert image.startswith(b"\x89PNG")
        self.events.append(("image", name))
