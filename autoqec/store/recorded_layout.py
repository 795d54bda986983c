"""Paths of recorded shots in a run directory."""

from __future__ import annotations

from pathlib import Path


def visible_shots(round_dir: Path) -> Path:
    """Return the directory of recorded training and validation shots, which the rounds of a run read."""
    return round_dir.parent / "recorded"


def recorded_location(round_dir: Path) -> Path:
    """Return the file that names the directory of the recorded shots of a run; rounds cannot read it."""
    return round_dir.parent / "recorded_directory.txt"
