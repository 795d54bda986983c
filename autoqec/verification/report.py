"""Read and write verification_report.{json,md}; the .json is written last and marks the verification as complete."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autoqec.contracts.verdict import Cost, PairedEffect, Rate, VerifyReport
from autoqec.errors import ContractError
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout

_TEMPLATE = "report.md.j2"


def write(round_dir: RoundLayout, report: VerifyReport) -> None:
    """Write both files.

    Raises:
        ContractError: The round already has a report.
    """
    if round_dir.report_json.exists():
        raise ContractError("a report is never overwritten", location=str(round_dir.report_json))
    atomic.write_text(round_dir.report_md, render(report))
    atomic.write_json(round_dir.report_json, report.dump())


def render(report: VerifyReport) -> str:
    """Render the report as Markdown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters.update(rate=_rate, percent=_percent, delta=_delta, cell=_table_cell, count=_count)
    return templates.get_template(_TEMPLATE).render(report=report)


def _rate(value: Rate) -> str:
    return f"{value.rate:.4g} [{value.low:.4g}, {value.high:.4g}]"


def _percent(effect: PairedEffect) -> str:
    if effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return "–"
    return f"{100 * effect.relative:.1f}% [{100 * effect.relative_low:.1f}, {100 * effect.relative_high:.1f}]"


def _count(value: int, cost: Cost) -> str:
    return f"at least {value}" if cost.is_lower_bound else str(value)


def _delta(effect: PairedEffect) -> str:
    return f"{effect.delta:.4g} [{effect.delta_low:.4g}, {effect.delta_high:.4g}]"


def _table_cell(text: str) -> str:
    """Escape text for a table cell; it may quote branch code, so markup is removed."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain.replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")[:600]
