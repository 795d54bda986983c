"""Option `--model` of review-log and diagnose: a language model's summary of the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autoqec.errors import AutoqecError, UsageError
from autoqec.orchestrator.plugin_protocols import FindingsReader, ideator_plugins
from autoqec.reporting.text import plain

if TYPE_CHECKING:
    from autoqec.cli.common import Output

Function = TypeVar("Function", bound=Callable[..., Any])


def model_option(function: Function) -> Function:
    """Add the option `--model` to a command."""
    text = "Language model that summarizes the findings below them; default: none."
    return click.option("--model", help=text)(function)


def check_model(model: str | None) -> None:
    """Check that the model can be called, before anything is printed.

    Raises:
        UsageError: The model, its client or its credentials are unknown.
    """
    if model == "":  # of a variable that is not set, for example
        raise UsageError("is empty", location="--model", hint="name a model, or leave --model out")
    if model is not None:
        _reader(model)


def summarize_findings(model: str | None, findings: Sequence[dict[str, Any]], topic: str, out: Output) -> None:
    """Print the summary of a model below the findings, or a note if its answer is unusable."""
    if model is None or not findings:
        return

    try:
        comments, cost = _reader(model)(findings, topic)
    except AutoqecError as error:
        out.note(f"{model} cannot be called: {plain(str(error), 400)}")
        return
    if comments is None:
        out.note(f"{model} gave no usable answer")
        return
    out.emit({"event": "words", "model": model, "points": [asdict(each) for each in comments], "cost_usd": cost})
    price = "cost unknown" if cost is None else f"{cost:.4f} USD"
    out.say(f"\nSummary by {model} (not verified, {price}):")
    for number, comment in enumerate(comments, start=1):
        rounds = f" (rounds {', '.join(map(str, comment.rounds))})" if comment.rounds else ""
        out.say(f"{number}. {plain(comment.what, 600)}{rounds}\n   Change: {plain(comment.change, 600)}")


def _reader(model: str) -> FindingsReader:
    for plugin in ideator_plugins():
        if (reader := plugin.reader(model)) is not None:
            return reader
    message = "no extension that asks language models is installed"
    raise UsageError(message, location="--model", hint="leave --model out")
