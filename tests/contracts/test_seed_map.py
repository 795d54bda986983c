"""docs/contracts/seed-map.md names code and tests that exist."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from autoqec.cli.autoqec import COMMANDS, group

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contracts" / "seed-map.md"
ROW = re.compile(r"^\| (\w+) \| (.+?) \| `(.+?)` \| `(.+?)` \| (?:`(.+?)`)? ?\|$", re.MULTILINE)
ROWS = [match.groups() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
# Letter -> number of statements of a seed document: RunTime, plan, environments, runners.
COMPLETE = {"C": 28, "P": 47, "D": 14, "L": 11}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_code_of_a_statement_exists(row: tuple[str, ...]) -> None:
    module, _, name = row[2].partition(":")
    value = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        value = getattr(value, part)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_test_of_a_statement_exists(row: tuple[str, ...]) -> None:
    path, _, name = row[3].partition("::")
    assert re.search(rf"def {re.escape(name.rpartition('::')[2])}\b", (ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", sorted({row[4] for row in ROWS if row[4]}))
def test_command_of_a_statement_exists(command: str) -> None:
    program, name, *arguments = shlex.split(command)
    assert program == "autoqec" and name in COMMANDS
    known = group.get_command(click.Context(group), name)
    assert known is not None
    options = {option for parameter in known.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options


@pytest.mark.parametrize(("letter", "count"), COMPLETE.items())
def test_every_statement_of_a_seed_document_has_a_row(letter: str, count: int) -> None:
    assert [row[0] for row in ROWS if row[0][0] == letter] == [f"{letter}{number}" for number in range(1, count + 1)]
