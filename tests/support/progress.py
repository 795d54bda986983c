"""progress.csv of a training, as tests read it."""

from __future__ import annotations

import csv

from autoqec.store.layout import RoundLayout


def progress_rows(layout: RoundLayout) -> list[dict[str, str]]:
    """Return the rows of progress.csv, as text by column."""
    with layout.progress.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
