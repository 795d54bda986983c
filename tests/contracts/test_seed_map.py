"""docs/contracts/seed-map.md names code and tests that exist."""

from __future__ import annotations

import importlib
import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

from autoqec.cli.autoqec import COMMANDS, group
from autoqec.contracts.pins import apply_pins, validate_pins

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contracts" / "seed-map.md"
ROW = re.compile(r"^\| (\w+) \| (.+?) \| `(.+?)` \| `(.+?)` \| `(.+?)` \|$", re.MULTILINE)
ROWS = [match.groups() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
# Letter -> number of statements of a seed document: RunTime, plan, environments, runners, round directory.
COMPLETE = {"C": 38, "P": 63, "D": 23, "L": 30, "R": 70}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_code_of_a_statement_exists(row: tuple[str, ...]) -> None:
    module, _, name = row[2].partition(":")
    value = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        value = getattr(value, part)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_test_of_a_statement_exists(row: tuple[str, ...]) -> None:
    path, _, name = row[3].partition("::")
    assert re.search(rf"^def {re.escape(name)}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", sorted({row[4] for row in ROWS}))
def test_command_of_a_statement_exists(command: str) -> None:
    program, name, *arguments = shlex.split(command)
    if program == "make":
        assert name in TARGETS and not arguments
        return
    assert program == "autoqec" and (name in COMMANDS or name == "run")
    pins = {argument for option, argument in pairwise(arguments) if option == "--pin"}
    apply_pins({"type": "mlp", "mlp": {}}, validate_pins(dict(pin.split("=", 1) for pin in pins)))
    known = group.get_command(click.Context(group), name)
    assert known is not None
    options = {option for parameter in known.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options
    positional = [parameter for parameter in known.params if isinstance(parameter, click.Argument)]
    assert positional or not [argument for argument in arguments if argument.isupper()]


def test_every_line_of_a_table_is_a_row() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    assert [line for line in lines if not ROW.match(line)] == [] and len(lines) == len(ROWS)


@pytest.mark.parametrize(("letter", "count"), COMPLETE.items())
def test_every_statement_of_a_seed_document_has_a_row(letter: str, count: int) -> None:
    assert [row[0] for row in ROWS if row[0][0] == letter] == [f"{letter}{number}" for number in range(1, count + 1)]
