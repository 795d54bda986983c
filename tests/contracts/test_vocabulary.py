"""Retired terms do not come back: docs/glossary.md has one word per concept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Retired term -> the term to use. Each is matched as a whole word, in any case.
RETIRED = {
    "mend": "hint",
    "told": "the noun that it holds",
    "shelf": "shot cache",
    "guest|guests": "external decoder",
    "appraisal|appraise": "env summary",
    "tally": "run state",
    "whoever|nobody": "name the actor",
    "lab|labs": "workspace",
    "walls": "sandbox",
    "waived": "opt-out",
    "judge|judges|judging": "verifier, verification",
    "dearest": "most expensive",
    "to be had": "installed, available",
    "gone on with": "resumed",
    "set aside": "quarantined",
    "search surface": "editable modules",
    "where there is none": "if there is none",
    "goes on with": "continues",
    "knob|knobs": "hyperparameter, option",
}
# Files in which a term has another meaning or is fixed by a file format.
ALLOWED = {
    "autoqec/llm/cassette.py": {"mend"},  # key of recorded errors
    "autoqec/qec/env_summary.py": {"appraise"},  # seed material of a random stream
    "autoqec/verification/verifier.py": {"judge"},  # prefix of scratch directories that recovery matches
}
PATTERN = re.compile(r"(?<![\w-])(" + "|".join(RETIRED) + r")(?![\w-])", re.IGNORECASE)
CHECKED = (
    "autoqec/continual",
    "autoqec/data",
    "autoqec/envs",
    "autoqec/launch",
    "autoqec/llm",
    "autoqec/orchestrator",
    "autoqec/qec",
    "autoqec/runner",
    "autoqec/reporting",
    "autoqec/store",
    "autoqec/system",
    "autoqec/verification",
    "README.md",
    "AGENTS.md",
    ".claude",
)


def files(place: str) -> Iterator[Path]:
    start = ROOT / place
    if start.is_file():
        yield start
        return
    for path in sorted(start.rglob("*")):
        if path.suffix in (".py", ".md", ".j2", ".yaml") and "schemas" not in path.parts:
            yield path


@pytest.mark.parametrize("place", CHECKED)
def test_retired_terms_do_not_come_back(place: str) -> None:
    found = []
    for path in files(place):
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found += [
                f"{name}:{number}: {match[0]!r}"
                for match in PATTERN.finditer(line)
                if match[0].lower() not in ALLOWED.get(name, set())
            ]
    assert not found, "\n".join(found)


def test_a_retired_term_is_found() -> None:
    assert PATTERN.search("Mend: try again") and not PATTERN.search("recommended, lab_root, foretold")
