"""Help of every command, and errors for invalid command lines."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from autoqec.cli import commands
from autoqec.cli.autoqec import COMMANDS, group
from autoqec.cli.common import run_cli
from tests.support.shown import check_error

NAMES = group.list_commands(click.Context(group))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_command_has_help_and_the_shared_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, [name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown and "--quiet" in shown and "--verbose" in shown


def test_command_table_matches_command_names() -> None:
    with group.make_context("autoqec", ["--version"], resilient_parsing=True) as context:
        for name in NAMES:
            command = group.get_command(context, name)
            assert command is not None and command.name == name


def test_every_command_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/contracts/command-line.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"| `{name}` |" in page


def test_every_command_file_is_registered() -> None:
    files = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == {module.rpartition(".")[2] for module, _ in COMMANDS.values()}


@pytest.mark.parametrize(
    "argv", [["rum"], ["run", "smoke", "--rouns", "2"], ["run", "smoke", "--rounds", "0"], ["run"]]
)
def test_invalid_command_line_exits_2_with_hint(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, [*argv, "--json"]) == 2
    shown = capsys.readouterr()
    check_error(shown.err, "autoqec", hint=True)
    assert json.loads(shown.out)["exit_code"] == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("autoqec 0.")


def test_envs_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["envs", "--json"]) == 0
    shown = capsys.readouterr()
    values = [json.loads(line) for line in shown.out.splitlines()]
    assert {"smoke", "surface_d3_depol", "surface_d5_depol"} <= {value["name"] for value in values}
    assert "surface_code:rotated_memory_z d=5" in shown.err


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (("show", "RUN", "--graph", "--dot"), "--graph"),
        (("show", "--graph"), "RUN"),
        (("report", "RUN", "--port", "8000"), "--port"),
        (("report", "RUN", "--serve", "--format", "svg"), "--serve"),
        (("evaluate", "toy_inmemory", "--resume", "x", "--against-memoryless"), "--resume"),
        (("search-designs", "smoke", "--out", "x", "--table", "x", "--val-shots", "9"), "--val-shots"),
        (("search-designs", "smoke", "--out", "x", "--no-figures", "--task", "cost"), "--task"),
        (("run-round", "smoke", "x", "x", "--branch", "x"), "--branch"),
        (("run-round", "smoke", "x", "x", "--compose-mode", "pure"), "--compose-mode"),
        (("run-round", "smoke", "x", "x", "--fork-from", "x", "--fork-from", "y"), "--compose-mode"),
        (("decode", "x", "--in", "x", "--out", "y", "--allow-other-dem"), "--allow-other-dem"),
        (("add-env", "x", "--hx", "x", "--code", "x"), "--hz"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_contradictory_options_are_rejected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(group, list(argv)) == 2
    message, _ = check_error(capsys.readouterr().err, hint=True)
    assert message.startswith(f"{option}: ") and not list(tmp_path.iterdir())
