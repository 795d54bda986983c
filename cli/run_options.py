"""The options of `autoqec run`, generated from the fields of a run's specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from autoqec.contracts.base import Contract
from autoqec.contracts.run_spec import OptionField, RunSpec, option_fields
from autoqec.orchestrator.plugin_protocols import executor_names, ideator_names, run_plugins

Function = TypeVar("Function", bound=Callable[..., Any])


def run_options(function: Function) -> Function:
    """Add every option of the core and of installed extensions to a command."""
    choices = {"ideator": ideator_names(), "executor": executor_names()}
    models: list[type[Contract]] = [RunSpec, *(plugin.Options for plugin in run_plugins())]
    for each in reversed([each for model in models for each in option_fields(model)]):
        function = _option(each, choices)(function)
    return function


def _option(each: OptionField, choices: Mapping[str, tuple[str, ...]]) -> Callable[[Function], Function]:
    """Return the decorator that adds one option."""
    field, option, annotation = each.field, each.option, _without_none(each.field.annotation)
    flag = f"--{each.name.replace('_', '-')}"
    settings: dict[str, Any] = {"help": field.description, "metavar": option.metavar, "default": field.default}
    if annotation is bool:
        settings.pop("metavar")
        flag += f"/--no-{flag.removeprefix('--')}" if option.negatable else ""
        return click.option(flag, is_flag=True, **settings)
    if each.name in choices:
        settings["type"] = click.Choice(choices[each.name])
    elif get_origin(annotation) is Literal:
        settings["type"] = click.Choice(get_args(annotation))
    elif option.path:
        settings["type"] = click.Path(path_type=Path)
    elif annotation in (int, float):
        limits = {key: getattr(mark, key) for mark in field.metadata for key in ("ge", "le") if hasattr(mark, key)}
        kind: Any = click.IntRange if annotation is int else click.FloatRange
        settings["type"] = kind(limits.get("ge"), limits.get("le"))
    if option.multiple or get_origin(annotation) is tuple:
        settings |= {"multiple": True, "default": ()}
    elif get_origin(annotation) is dict:
        settings["default"] = ""
    if option.varies:
        settings["default"] = None
    settings["show_default"] = bool(settings["default"])
    return click.option(flag, **settings)


def _without_none(annotation: Any) -> Any:
    """Return `A` for `A | None`."""
    alternatives = [each for each in get_args(annotation) if each is not type(None)]
    is_optional = type(None) in get_args(annotation) and len(alternatives) == 1
    return alternatives[0] if is_optional else annotation
