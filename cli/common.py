"""Shared by all commands: --json, -q and -v, output streams, and exit codes."""

from __future__ import annotations

import functools
import json
import math
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from autoqec.cli.machine_errors import machine_error
from autoqec.cli.streams import guarded_streams, output_error
from autoqec.errors import AutoqecError, InternalError, RunInterruptedError, UsageError
from autoqec.reporting.text import plain
from autoqec.store import run_log

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Output:
    """Output of a command.

    With `json`, stdout holds one JSON object per line and nothing else; text goes to stderr.
    """

    json: bool = False
    quiet: bool = False
    verbose: int = 0

    def say(self, text: str = "") -> None:
        """Print a line of the result."""
        click.echo(text, err=self.json)

    def note(self, text: str) -> None:
        """Print additional information on stderr, unless --quiet is given."""
        if not self.quiet:
            click.echo(text, err=True)

    def emit(self, value: dict[str, Any]) -> None:
        """With --json, print `value` as one line; non-ASCII characters are escaped."""
        if self.json:
            click.echo(json.dumps(replace_non_finite(value), allow_nan=False))


def replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities by None, since JSON cannot represent them."""
    if isinstance(value, dict):
        return {key: replace_non_finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def options(function: Function) -> Function:
    """Add --json, -q and -v to a command, which receives them as `out`."""

    @click.option(
        "--json", "as_json", is_flag=True, help="Print JSON objects on stdout, one per line; text goes to stderr."
    )
    @click.option("-q", "--quiet", is_flag=True, help="Omit notes and progress.")
    @click.option(
        "-v",
        "--verbose",
        count=True,
        help="Show the log on stderr (-vv: with progress), and the traceback of errors.",
    )
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, quiet: bool, verbose: int, **kwargs: Any) -> Any:
        if quiet and verbose:
            raise UsageError("cannot be combined with --verbose", location="--quiet", hint="remove one of them")
        if verbose:
            run_log.show(verbose)
        return function(*args, out=Output(as_json, quiet, verbose), **kwargs)

    return wrapped  # type: ignore[return-value]


def is_given(name: str) -> bool:
    """Return whether the parameter `name` of the current command was given and not left at its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not None and source is not click.core.ParameterSource.DEFAULT


def recorded_option(function: Function) -> Function:
    """Add --recorded DIR to a command that uses a run in another place than that of its recorded shots."""
    return click.option(
        "--recorded",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Directory of the run's recorded shots, if it has moved; compared with the hashes in the run's env.",
    )(function)


def trust_option(*, registered: bool = True) -> Callable[[Function], Function]:
    """Add --trust-decoder to a command that may load external decoders.

    Args:
        registered: Whether decoders that installed packages register need no such option.
    """

    def set_trust(context: click.Context, parameter: click.Parameter, functions: tuple[str, ...]) -> None:
        from autoqec.qec.decoder_trust import trust_decoders

        trust_decoders(functions, registered=registered)

    return click.option(
        "--trust-decoder",
        metavar="MODULE:FUNCTION",
        multiple=True,
        expose_value=False,
        callback=set_trust,
        help="Allow the env to use this external decoder; it runs in the sandbox. Repeatable.",
    )


def run_cli(group: click.Group, argv: Sequence[str]) -> int:
    """Run one command line and return its exit status; only a bug in autoqec prints a traceback."""
    with guarded_streams() as output:
        code = _run_command(group, argv)
        if (error := output_error(output)) is not None and code == 0:
            code = _failed([], error)
    return code


def _run_command(group: click.Group, argv: Sequence[str]) -> int:
    interrupts = _count_interrupts()
    try:
        code = group.main(args=list(argv), prog_name="autoqec", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _failed(argv, _usage_error(error, argv))
    except AutoqecError as error:
        if _verbose(argv):
            _show_trace()
        return _failed(argv, error)
    except (KeyboardInterrupt, click.Abort):
        return _failed(argv, RunInterruptedError("interrupted"))
    except Exception as error:
        if interrupts:  # an import that Ctrl-C interrupts may raise any exception
            return _failed(argv, RunInterruptedError("interrupted"))
        if (known := machine_error(error)) is not None:
            if _verbose(argv):
                _show_trace()
            return _failed(argv, known)
        _show_trace()
        return _failed(argv, InternalError(f"{type(error).__name__}: {error}", location="bug in autoqec"))


def _count_interrupts() -> list[int]:
    """Return a list that grows with each Ctrl-C; other handlers of SIGINT are left in place."""
    received: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    return received


def _failed(argv: Sequence[str], error: AutoqecError) -> int:
    """Print the error, and the hint on its own line; return the exit status."""
    if isinstance(error, UsageError) and error.hint is None and argv:
        error.hint = f"autoqec {argv[0]} --help"
    if "--json" in argv:
        click.echo(json.dumps(error.to_json()))
    click.echo(f"error: {plain(error.summary, 2000)}", err=True)
    if error.hint:
        click.echo(f"hint: {plain(error.hint, 2000)}", err=True)
    return error.exit_code


def _show_trace() -> None:
    """Print the traceback of the current exception, control characters escaped."""
    import traceback

    click.echo("\n".join(plain(line, 2000) for line in traceback.format_exc().splitlines()), err=True)


def _usage_error(error: click.ClickException, argv: Sequence[str]) -> UsageError:
    message = " ".join(error.format_message().split())  # click lists choices on lines of their own
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    hint = f"{context.command_path} --help" if context else None
    if parameter is not None and isinstance(parameter.type, click.Choice):
        choices = [str(choice) for choice in parameter.type.choices]
        values = {value for word in argv for value in (word, word.partition("=")[2])} - {*choices}
        meant = [choice for choice in choices if choice.lower() in {value.lower() for value in values}]
        option = max(parameter.opts, key=len)
        hint = f"{option} {meant[0]}" if meant else f"choose {option} from {', '.join(choices)}"
    return UsageError(message, hint=hint)


def _verbose(argv: Sequence[str]) -> bool:
    return any(arg == "--verbose" or (arg.startswith("-v") and set(arg[1:]) == {"v"}) for arg in argv)
