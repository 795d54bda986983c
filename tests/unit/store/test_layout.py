"""Paths in rows: relative to the run directory, and valid after the repository moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.store.layout import RunLayout, path_in_run


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path / "repository", "20260101-000000")
    layout.round(3).dir.mkdir(parents=True)
    layout.round(3).checkpoint.write_bytes(b"weights")
    return layout


def test_relative_path_is_found_in_the_run(layout: RunLayout) -> None:
    stored = path_in_run(3, str(layout.round(3).checkpoint))
    assert stored == "round_3/checkpoint.pt" and layout.stored(stored) == layout.round(3).checkpoint


@pytest.mark.parametrize("path", [None, "round_4/checkpoint.pt", "/x/round_4/checkpoint.pt", "../../../etc/passwd"])
def test_missing_or_outside_file_is_none(layout: RunLayout, path: str | None) -> None:
    assert layout.stored(path) is None
