"""Charts as inline SVG for a page, or as files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec import optional
from autoqec.reporting.charts import COLOURS, Draw, front, front_by_time, search_progress
from autoqec.reporting.charts_by_p import ler_vs_p, ratio_vs_p
from autoqec.reporting.run_report import RunReport
from autoqec.store import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # names may contain a dollar sign
    "svg.fonttype": "none",
    "svg.hashsalt": "autoqec",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["soft"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.5,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
_GROUPS = r"figure|axes|text|patch|line2d|matplotlib\.axis|xtick|ytick|legend|[a-zA-Z]*Collection"

FIGURES: dict[str, Draw] = {
    "front": front,
    "front_time": front_by_time,
    "ler": ler_vs_p,
    "ratio": ratio_vs_p,
    "course": search_progress,
}


def inline(name: str, runs: Sequence[RunReport]) -> str:
    """Return a chart as SVG for embedding: colours are CSS variables, discs link to rounds; "" if there is no data."""
    matplotlib = optional.load("matplotlib", extra="report")

    with matplotlib.rc_context(STYLE):
        figure = FIGURES[name](runs)
        return _themed(_bytes(figure, "svg").decode(), f"{name}-{runs[0].id}") if figure is not None else ""


def save(directory: Path, form: str, runs: Sequence[RunReport]) -> list[Path]:
    """Write each chart that has data as `<name>.<form>` (svg or png) and return the paths."""
    matplotlib = optional.load("matplotlib", extra="report")

    atomic.make_dir(directory)
    written = []
    with matplotlib.rc_context({**STYLE, "savefig.facecolor": "white"}):
        for name, draw in FIGURES.items():
            figure = draw(runs)
            if figure is not None:
                written.append(directory / f"{name}.{form}")
                atomic.write_bytes(written[-1], _bytes(figure, form))
    return written


def _bytes(figure: Figure, form: str) -> bytes:
    stream = io.BytesIO()
    # No date and no version, so that the same run gives the same bytes.
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks: the viewer has one
        figure.savefig(stream, format=form, dpi=160, metadata=metadata)
    return stream.getvalue()


def _themed(svg: str, prefix: str) -> str:
    """Make an SVG embeddable beside others: no style element, ids that start with `prefix`."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r'<a xlink:href="(#[^"]*?-round-(\d+)[^"]*)"[^>]*>', r'<a href="\1" aria-label="Round \2">', svg)
    svg = re.sub(rf' id="({_GROUPS})_[^"]*"', "", svg)
    svg = re.sub(r'( id="|href="#|url\(#)(?!run-)', rf"\1{prefix}-", svg)
    for name, value in COLOURS.items():
        svg = svg.replace(value, f"var(--{name})")
    return re.sub(r">\s+<", "><", svg)
