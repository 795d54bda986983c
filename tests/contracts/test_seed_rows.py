"""Every row of the seeds' RunTime (C), plan (P) and SerialEnvironments (D) has a test that carries its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = [f"{letter}{number:02d}" for letter, last in (("c", 28), ("p", 38), ("d", 14)) for number in range(1, last + 1)]
CARRIED = re.compile(r"^def test_((?:[cpd]\d{2}_)+)", re.MULTILINE)


@pytest.fixture(scope="module")
def carried() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    return {row for text in texts for names in CARRIED.findall(text) for row in names.strip("_").split("_")}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_its_test(row: str, carried: set[str]) -> None:
    assert row in carried
