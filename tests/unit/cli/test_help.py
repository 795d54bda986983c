"""Every command explains itself, and a wrong line names the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.cli import commands
from autoqec.cli.autoqec import COMMANDS, group
from autoqec.cli.common import run_cli
from tests.support.shown import check_error


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_the_shared_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, [name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown and "--quiet" in shown and "--verbose" in shown


def test_the_table_and_the_commands_say_the_same() -> None:
    with group.make_context("autoqec", ["--version"], resilient_parsing=True) as context:
        for name in COMMANDS:
            command = group.get_command(context, name)
            assert command is not None and command.name == name


def test_every_command_file_is_in_the_table() -> None:
    files = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == {module.rpartition(".")[2] for module, _ in COMMANDS.values()} - {"autoqec"}


@pytest.mark.parametrize(
    "argv", [["rum"], ["run", "smoke", "--rouns", "2"], ["run", "smoke", "--rounds", "0"], ["run"]]
)
def test_a_wrong_line_is_exit_2_with_a_way_out(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, [*argv, "--json"]) == 2
    shown = capsys.readouterr()
    check_error(shown.err, "autoqec", hint=True)
    assert json.loads(shown.out)["exit_code"] == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("autoqec 0.")


def test_envs_are_listed_for_people_and_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["envs", "--json"]) == 0
    shown = capsys.readouterr()
    values = [json.loads(line) for line in shown.out.splitlines()]
    assert {"smoke", "surface_d3_depol", "surface_d5_depol"} <= {value["name"] for value in values}
    assert "surface_code:rotated_memory_z d=5" in shown.err
