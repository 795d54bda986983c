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


@pytest.mark.parametrize("root", ["/elsewhere/repository", "/another name"])
def test_absolute_path_of_an_earlier_version_is_rebased(layout: RunLayout, root: str) -> None:
    old = f"{root}/runs/20260101-000000/round_3/checkpoint.pt"
    assert layout.stored(old) == layout.round(3).checkpoint


def test_moved_repository_uses_its_own_file_and_not_the_original(layout: RunLayout, tmp_path: Path) -> None:
    original = layout.round(3).checkpoint
    moved = RunLayout(tmp_path / "copy", layout.run_id)
    moved.round(3).dir.mkdir(parents=True)
    moved.round(3).checkpoint.write_bytes(b"weights")
    assert moved.stored(str(original)) == moved.round(3).checkpoint


@pytest.mark.parametrize("path", [None, "round_4/checkpoint.pt", "/x/round_4/checkpoint.pt", "../../../etc/passwd"])
def test_missing_or_outside_file_is_none(layout: RunLayout, path: str | None) -> None:
    assert layout.stored(path) is None
