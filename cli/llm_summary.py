"""Option `--model` of review-log and diagnose: a language model's summary of the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autoqec.contracts.events import Event, LlmCalled
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, role_config
from autoqec.extensions.language_models.clients.errors import LlmError
from autoqec.extensions.language_models.roles.reader import LlmReader
from autoqec.reporting.text import plain

if TYPE_CHECKING:
    from autoqec.cli.common import Output
    from autoqec.extensions.language_models.roles.reader import FindingsTopic

Function = TypeVar("Function", bound=Callable[..., Any])


def model_option(function: Function) -> Function:
    """Add the option `--model` to a command."""
    text = "Language model that summarizes the findings below them; default: none."
    return click.option("--model", help=text)(function)


def check_model(model: str | None) -> None:
    """Check that the model can be called, before anything is printed.

    Raises:
        UsageError: The model or its client is unknown.
        LlmAuthError: There are no credentials.
    """
    if model == "":  # of a variable that is not set, for example
        raise UsageError("is empty", location="--model", hint="name a model, or leave --model out")
    if model is not None:
        _client(model)


def summarize_findings(
    model: str | None, findings: Sequence[dict[str, Any]], topic: FindingsTopic, out: Output
) -> None:
    """Print the summary of a model below the findings, or a note if its answer is unusable."""
    if model is None or not findings:
        return

    calls: list[LlmCalled] = []

    def on_event(event: Event) -> None:
        if isinstance(event, LlmCalled):
            calls.append(event)

    try:
        answer = LlmReader(_client(model), on_event=on_event)(findings, topic)
    except LlmError as error:
        out.note(f"{model} cannot be called: {plain(str(error), 400)}")
        return
    costs = [call.cost_usd for call in calls]
    cost = None if None in costs else sum(filter(None, costs))
    if answer is None:
        out.note(f"{model} gave no usable answer")
        return
    points = [point.dump() for point in answer.points]
    out.emit({"event": "words", "model": model, "points": points, "cost_usd": cost})
    price = "cost unknown" if cost is None else f"{cost:.4f} USD"
    out.say(f"\nSummary by {model} (not verified, {price}):")
    for number, point in enumerate(answer.points, start=1):
        rounds = f" (rounds {', '.join(map(str, point.rounds))})" if point.rounds else ""
        out.say(f"{number}. {plain(point.what, 600)}{rounds}\n   Change: {plain(point.change, 600)}")


def _client(model: str) -> Any:
    return get_lm_client(role_config("reader", LMConfig(model=model)))
