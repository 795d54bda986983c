"""Option `--model` of review-log and diagnose: a language model's summary of the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from autoqec import plugins
from autoqec.cli.common import Output
from autoqec.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
# Prints the summary of findings, given as plain values, on a topic; or a note if the model has no usable answer.
Summarize = Callable[[Sequence[dict[str, Any]], str, Output], None]


def model_option(function: Function) -> Function:
    """Add the option `--model` to a command."""
    text = "Language model that summarizes the findings below them; default: none."
    return click.option("--model", help=text)(function)


def open_reader(model: str | None) -> Summarize:
    """Return the function that prints a model's summary; without a model it prints nothing.

    Raises:
        UsageError: The model or its client is unknown, or no extension asks language models.
        AutoqecError: There are no credentials.
    """
    if model is None:
        return lambda findings, topic, out: None
    if not model:  # of a variable that is not set, for example
        raise UsageError("is empty", location="--model", hint="name a model, or leave --model out")
    summarize: Summarize = plugins.load("autoqec.readers", "language_models")(model)
    return summarize
