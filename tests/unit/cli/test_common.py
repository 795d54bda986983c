"""Exit codes, error messages and output streams, which all commands share."""

from __future__ import annotations

import json

import click
import pytest

from autoqec.cli.autoqec import group as autoqec_group
from autoqec.cli.common import Output, options, run_cli
from autoqec.errors import (
    AutoqecError,
    ContractError,
    ManualInterventionRequired,
    RoundError,
    RunInterruptedError,
    StorageError,
    UsageError,
)
from tests.support.shown import check_error

ENDS = [
    (UsageError("is wrong", location="env.yaml", hint="edit env.yaml"), 2),
    (ContractError("holds nonsense", location="metrics.json"), 2),
    (ManualInterventionRequired("needs a decision", hint="decide"), 3),
    (StorageError("could not be written", location="runs"), 74),
    (RunInterruptedError("stopped", hint="autoqec run --resume RUN"), 130),
    (RoundError("train_error", "the loss is not finite"), 1),
]


def ending(error: BaseException | int | None) -> click.Group:
    @click.group()
    def group() -> None: ...

    @group.command("end")
    @options
    def end(out: Output) -> None:
        if isinstance(error, BaseException):
            raise error
        out.say("a result")
        out.note("by the way")
        out.emit({"Δ": "über"})
        if error:
            raise click.exceptions.Exit(error)

    return group


@pytest.mark.parametrize(("error", "code"), ENDS, ids=lambda value: type(value).__name__)
def test_known_error_is_one_line_with_exit_code(
    error: AutoqecError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(ending(error), ["end", "--json"]) == code
    shown = capsys.readouterr()
    assert check_error(shown.err) == (error.summary, error.hint)
    value = json.loads(shown.out)
    assert value == error.to_json() and value["exit_code"] == code and value["code"] == error.code
    assert run_cli(ending(error), ["end", "-v"]) == code
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interruption_exits_130(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(ending(error), ["end"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_quiet_and_verbose_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(ending(None), ["end", "-q", "-v"]) == 2
    assert "--quiet: cannot be combined with --verbose" in capsys.readouterr().err


def test_unexpected_exception_is_reported_as_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(ending(ZeroDivisionError("x\x1b[2J")), ["end"]) == 70
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "\x1b" not in shown
    assert shown.endswith("error: bug in autoqec: ZeroDivisionError: x\\x1b[2J\n")


def test_usage_error_without_a_hint_gets_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(ending(UsageError("is wrong", location="--it")), ["end"])
    assert check_error(capsys.readouterr().err) == ("--it: is wrong", "autoqec end --help")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--profile", "DEV"], "--profile dev"),
        (["--profile=Dev"], "--profile dev"),
        (["smoke", "--profile", "fast"], "choose --profile from smoke, dev, prod"),
        (
            ["--ideator", "bayes", "--profile", "dev"],
            "choose --ideator from tpe, random, evolve, replay, hybrid, llm, policy",
        ),
        (["--rounds", "x"], "autoqec run --help"),
        (["--dryrun"], "autoqec run --help"),
    ],
)
def test_hint_of_a_wrong_option_names_the_choices(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(autoqec_group, ["run", *arguments]) == 2
    assert check_error(capsys.readouterr().err)[1] == hint


def test_hint_of_a_missing_choice_lists_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(autoqec_group, ["export", "RUN"]) == 2
    assert check_error(capsys.readouterr().err)[1] == "choose --format from csv, sinter-csv, tensorboard, wandb"


def test_control_characters_in_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(ending(ContractError("x\x1b]0;owned\x07\ny", location="\x9b2J")), ["end"])
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.removesuffix("\n").isprintable()


def test_text_and_json_go_to_separate_streams(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(ending(None), ["end"]) == 0
    assert tuple(capsys.readouterr()) == ("a result\n", "by the way\n")
    assert run_cli(ending(None), ["end", "--json", "-q"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"Δ": "über"} and shown.out.isascii() and shown.err == "a result\n"
    assert run_cli(ending(1), ["end"]) == 1
