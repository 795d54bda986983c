"""Figures of designs, drawn with matplotlib, handed to a logger or a file and closed.

What is drawn depends on the task: `transients` (loss while training), `gain` (relative gain with its interval) and
`cost` (gain against FLOPs).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from autoqec import optional
from autoqec.errors import UsageError
from autoqec.store import atomic

RenderMode = Mapping[str, Any]
STYLES = ("logger", "file")
FORMATS = ("figure", "image")


def top_k(n: int, disregarded_fraction: float) -> int:
    """Return the number of environments drawn together: floor(n·(1 − p)), exact for decimal p (10·(1 − 0.9) is 1)."""
    if not 0 <= disregarded_fraction <= 1:
        raise UsageError(f"disregarded_percentage = {disregarded_fraction} is outside [0, 1]", location="render")
    return math.floor(n * (1 - Fraction(str(disregarded_fraction))))


def render_batch(
    best: Sequence[Any], states: Sequence[Any], losses: Sequence[float], mode: RenderMode, logger: Any, iteration: int
) -> None:
    """Draw environments one by one and states together.

    Args:
        best: Environments, best first; each draws itself through `render(mode)`.
        states: States that are drawn together, best first.
        losses: Their losses.
        mode: Complete mode of `AbstractMultiEnvironments.render`.
        logger: Receives figures and metrics in the style "logger"; may be None.
        iteration: Number of this call.
    """
    for key, known in (("style", STYLES), ("format", FORMATS), ("task", tuple(TASKS))):
        if mode[key] not in known:
            raise UsageError(f"unknown {key} {mode[key]!r}", location="render", hint=f"one of {', '.join(known)}")
    for rank, env in enumerate(best, start=1):
        with closing_figure(env.render(mode)) as figure:
            _emit_figure(f"{mode['task']}: best {rank}", figure, mode, logger, iteration)
    if states:
        with closing_figure(plot_states(states, losses, mode["task"])) as figure:
            _emit_figure(f"{mode['task']}: top {len(states)}", figure, mode, logger, iteration)
    finite = [loss for loss in losses if math.isfinite(loss)]
    if logger is not None and mode["style"] == "logger" and finite:
        logger.log_metric("Top Loss: Best", min(finite), iteration)
        logger.log_metric("Top Loss: Mean", sum(finite) / len(finite), iteration)


@contextmanager
def closing_figure(figure: Any) -> Iterator[Any]:
    """Close the figure at the end, so that pyplot does not keep it."""
    plt = optional.load("matplotlib.pyplot", extra="report")

    try:
        yield figure
    finally:
        if figure is not None:
            plt.close(figure)


def plot_states(states: Sequence[Any], losses: Sequence[float], task: str) -> Any:
    """One figure: the states drawn for the task, and their losses by rank beside it."""
    figure = new_figure((9, 4))
    left, right = figure.subplots(1, 2)
    draw_task(left, states, task)
    shown = [loss if math.isfinite(loss) else math.nan for loss in losses]
    right.plot(range(1, len(shown) + 1), shown, marker="o", linestyle="none")
    right.set(title="losses, best first", xlabel="rank", ylabel="loss")
    return figure


def draw_task(axes: Any, states: Sequence[Any], task: str) -> None:
    """Draw states, best first, from their last task infos. UsageError for an unknown task."""
    if task not in TASKS:
        raise UsageError(f"unknown task {task!r}", location="render", hint=f"one of {', '.join(TASKS)}")
    TASKS[task](axes, [getattr(state, "last_task_info", None) or {} for state in states])
    axes.set(title=task)


def _draw_transients(axes: Any, infos: Sequence[Mapping[str, Any]]) -> None:
    for rank, info in enumerate(infos, start=1):
        curve = info.get("curve") or []
        axes.plot(range(1, len(curve) + 1), curve, label=f"#{rank}", linewidth=1)
    axes.set(xlabel="part of the training", ylabel="loss while training")


def _draw_gain(axes: Any, infos: Sequence[Mapping[str, Any]]) -> None:
    for rank, info in enumerate(infos, start=1):
        gain, low, high = (info.get(name) for name in ("relative", "relative_low", "relative_high"))
        if gain is not None:
            bars = None if low is None or high is None else [[gain - low], [high - gain]]
            axes.errorbar([rank], [gain], yerr=bars, marker="o", capsize=3, color="tab:blue")
    axes.axhline(0.0, color="gray", linewidth=0.8)
    axes.set(xlabel="rank", ylabel="relative gain in logical error rate, 95% interval")


def _draw_cost(axes: Any, infos: Sequence[Mapping[str, Any]]) -> None:
    points = [
        (rank, info["flops_per_syndrome"], info["relative"])
        for rank, info in enumerate(infos, start=1)
        if info.get("flops_per_syndrome") and info.get("relative") is not None
    ]
    for rank, flops, gain in points:
        axes.plot([flops], [gain], marker="o", linestyle="none", color="tab:blue")
        axes.annotate(f"#{rank}", (flops, gain), textcoords="offset points", xytext=(4, 4))
    if points:
        axes.set_xscale("log")
    axes.set(xlabel="FLOPs per syndrome", ylabel="relative gain in logical error rate")


TASKS: dict[str, Callable[[Any, Sequence[Mapping[str, Any]]], None]] = {
    "transients": _draw_transients,
    "gain": _draw_gain,
    "cost": _draw_cost,
}


def new_figure(size: tuple[float, float]) -> Any:
    """Return a figure outside pyplot: it is freed with its last reference."""
    return optional.load("matplotlib.figure", extra="report").Figure(figsize=size, layout="constrained")


def _emit_figure(name: str, figure: Any, mode: RenderMode, logger: Any, iteration: int) -> None:
    if figure is None:
        return
    if mode["style"] == "file":
        directory = Path(mode["path"])
        atomic.make_dir(directory)
        stem = "".join(char if char.isalnum() else "-" for char in name.lower())
        atomic.write_bytes(directory / f"{iteration:06d}-{stem}.png", _png(figure))
    elif logger is not None and mode["format"] == "image":
        logger.log_image(name, _png(figure), iteration)
    elif logger is not None:
        logger.log_figure(name, figure, iteration)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
