"""Retired terms do not come back: docs/glossary.md has one word per concept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
# Parts of a page that are not its own words: generated from code, whose owner is checked, or the list of retired terms.
BLOCK = re.compile(r"<!-- (table: modules|retired) -->\n(.*?)<!-- end -->", re.DOTALL)


def retired_terms() -> dict[str, str]:
    """Retired term -> the term to use, from the glossary."""
    block = next(match[2] for match in BLOCK.finditer(GLOSSARY.read_text(encoding="utf-8")) if match[1] == "retired")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", block, re.MULTILINE)[1:]
    return {term: use for terms, use in rows for term in terms.split(", ")}


# Files in which a term has another meaning or is fixed by a file format.
ALLOWED = {
    "autoqec/contracts/events.py": {"judging"},  # name of an event in the output of --json
    "docs/contracts/sandbox.md": {"nobody"},  # the user of that name
    "docs/contracts/command-line.md": {"judging"},  # the kind of an event
    "autoqec/extensions/language_models/clients/cassette.py": {"mend"},  # key of recorded errors
    "autoqec/qec/env_summary.py": {"appraise"},  # seed material of a random stream
    "tests/contracts/test_vocabulary.py": {"appraise", "judge", "judging", "mend", "nobody"},  # this file
}
PATTERN = re.compile(r"(?<![\w-])(" + "|".join(retired_terms()) + r")(?![\w-])", re.IGNORECASE)
CHECKED = (
    "autoqec",
    "cli",
    "README.md",
    "AGENTS.md",
    ".claude",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "tests",
    "benchmarks",
    "examples",
)


def files(folder: str) -> Iterator[Path]:
    start = ROOT / folder
    if start.is_file():
        yield start
        return
    for path in sorted(start.rglob("*")):
        if path.suffix in (".py", ".md", ".j2", ".yaml") and "schemas" not in path.parts:
            yield path


@pytest.mark.parametrize("folder", CHECKED)
def test_retired_terms_do_not_come_back(folder: str) -> None:
    found = []
    for path in files(folder):
        name = path.relative_to(ROOT).as_posix()
        text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), start=1):
            found += [
                f"{name}:{number}: {match[0]!r}"
                for match in PATTERN.finditer(line)
                if match[0].lower() not in ALLOWED.get(name, set())
            ]
    assert not found, "\n".join(found)


def test_retired_term_is_found() -> None:
    assert PATTERN.search("Mend: try again") and not PATTERN.search("recommended, lab_root, foretold")
