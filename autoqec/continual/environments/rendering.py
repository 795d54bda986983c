"""Figures of a batch, in matplotlib; made, handed over, closed."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
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
    """floor(n·(1 − p)), of the decimal number that was meant: 10·(1 − 0.9) is 1, whatever floats make of it."""
    if not 0 <= disregarded_fraction <= 1:
        raise UsageError(f"disregarded_percentage = {disregarded_fraction} lies outside [0, 1]", location="render")
    return math.floor(n * (1 - Fraction(str(disregarded_fraction))))


def render_batch(
    best: Sequence[Any], states: Sequence[Any], losses: Sequence[float], mode: RenderMode, logger: Any, iteration: int
) -> None:
    """best: environments that draw themselves. states, losses: what is drawn together, best first."""
    if mode["style"] not in STYLES or mode["format"] not in FORMATS:
        raise UsageError(
            f"style {mode['style']!r}, format {mode['format']!r}", location="render", hint=f"{STYLES}, {FORMATS}"
        )
    for rank, env in enumerate(best, start=1):
        with closing_figure(env.render(mode)) as figure:
            _emit_figure(f"{mode['task']}: best {rank}", figure, mode, logger, iteration)
    if states:
        with closing_figure(plot_curves(states, losses, mode["task"])) as figure:
            _emit_figure(f"{mode['task']}: top {len(states)}", figure, mode, logger, iteration)
    finite = [loss for loss in losses if math.isfinite(loss)]
    if logger is not None and mode["style"] == "logger" and finite:
        logger.log_metric("Top Loss: Best", min(finite), iteration)
        logger.log_metric("Top Loss: Mean", sum(finite) / len(finite), iteration)


@contextmanager
def closing_figure(figure: Any) -> Iterator[Any]:
    """Close the figure afterwards, also where pyplot keeps it."""
    plt = optional.load("matplotlib.pyplot", extra="report")

    try:
        yield figure
    finally:
        if figure is not None:
            plt.close(figure)


def plot_curves(states: Sequence[Any], losses: Sequence[float], task: str) -> Any:
    """One figure: each state's `curve` of its last task info over steps, and the losses beside it."""
    figure = new_figure((9, 4))
    left, right = figure.subplots(1, 2)
    for rank, state in enumerate(states, start=1):
        curve = (getattr(state, "last_task_info", None) or {}).get("curve") or []
        left.plot(range(1, len(curve) + 1), curve, label=f"#{rank}", linewidth=1)
    left.set(title=task, xlabel="step", ylabel="loss while training")
    shown = [loss if math.isfinite(loss) else math.nan for loss in losses]
    right.plot(range(1, len(shown) + 1), shown, marker="o", linestyle="none")
    right.set(title="losses, best first", xlabel="rank", ylabel="loss")
    return figure


def new_figure(size: tuple[float, float]) -> Any:
    """A figure that pyplot knows nothing of: it is gone when its last name is."""
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
