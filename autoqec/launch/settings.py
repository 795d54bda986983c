"""Settings of a run: from the command line when it starts, from run.json when it is resumed.

An option that is named on resume replaces the stored value; every other setting is inherited, so that a resumed run
asks the same model within the same budget.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from autoqec.contracts.history import RunInfo
from autoqec.contracts.settings import RunSettings
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.prices import parse_price
from autoqec.launch import role_options as options
from autoqec.launch.role_options import RoleOptions
from autoqec.orchestrator.budget import Budget
from autoqec.store.layout import RunLayout

DEFAULT_ROUNDS = 3  # of a run without any limit
_PATHS = ("ideator_memory", "analyst_memory", "memory", "container")
_SAME_NAME = (
    "open_modules", "replay_of", "executor", "slurm", "detach", "detach_slurm", "parallel", "threads"
)  # fmt: skip


def resolve_settings(info: RunInfo | None, explicit: set[str], chosen: dict[str, Any], root: Path) -> RunSettings:
    """Merge the options of this start into the stored settings of the run; models are filled in by `with_models`.

    Args:
        info: run.json of the run to resume; None for a new run.
        explicit: Names of the options that were given on the command line.
        chosen: Value of every option.
        root: Top of the workspace; stored paths are relative to it.
    """
    stored = info.settings if info is not None else None
    base = stored or RunSettings()
    named = explicit if stored is not None else set(chosen)
    update: dict[str, Any] = {name: chosen[name] for name in _SAME_NAME if name in named}
    update |= {name: _stored_path(chosen[name], root) for name in _PATHS if name in named}
    budget, llm_limits = options.split_budget(chosen["budget"])
    limits = {name: float(value) for name, value in vars(budget).items() if value is not None}
    update["budget"] = {**base.budget, **limits, **llm_limits}
    if chosen["rounds"] is not None:
        update["rounds"] = chosen["rounds"]
    elif chosen["budget"] or stored is None:
        update["rounds"] = None if chosen["budget"] else DEFAULT_ROUNDS
    if "executor" in named and chosen["executor"] == "local":
        update["slurm"], update["detach"] = tuple(chosen["slurm"]), chosen["detach"]
        update["container"] = None if chosen["container"] is None else str(chosen["container"])
    if update.get("detach") is False:
        update["detach_slurm"] = tuple(chosen["detach_slurm"])
    if chosen["cassette"] is not None or "model" in explicit:
        update["cassette"] = chosen["cassette"] is not None
    return base.model_copy(update=update)


def loop_budget(settings: RunSettings) -> Budget:
    """Return the limits of the loop, without those of the language models."""
    limits = {name: value for name, value in settings.budget.items() if name not in options.LLM_LIMITS}
    return Budget(**{name: int(v) if name in ("rounds", "plateau") else v for name, v in limits.items()})  # type: ignore[arg-type]


def role_options(
    settings: RunSettings,
    ideator: str,
    info: RunInfo | None,
    layout: RunLayout | None,
    explicit: set[str],
    chosen: dict[str, Any],
    root: Path,
) -> RoleOptions:
    """Return the roles that the settings describe. Raises UsageError if a resumed run would have to guess its model."""
    tokens = settings.budget.get("tokens")
    cassette: Path | None = chosen["cassette"]
    if cassette is None and settings.cassette and layout is not None:
        cassette = layout.cassette
    price = parse_price(chosen["price"]) if chosen["price"] else None
    options = RoleOptions(
        ideator=ideator,
        model=chosen["model"],
        effort=chosen["effort"],
        price=price,
        cassette=cassette,
        replay_of=settings.replay_of,
        max_usd=settings.budget.get("usd"),
        max_tokens=None if tokens is None else int(tokens),
        open_modules=settings.open_modules,
        ideator_memory=_path(settings.ideator_memory, root),
        analyst_memory=_path(settings.analyst_memory, root),
        memory=_path(settings.memory, root),
    )
    if not {"model", "effort", "price"} & explicit:
        options = replace(options, role_models=dict(settings.models))
    elif chosen["model"] is None:  # a new effort or price for the models that the run has
        changes: dict[str, Any] = {"effort": chosen["effort"]} if "effort" in explicit else {}
        if price is not None:
            changes["price"] = price.model_dump(exclude_none=True)
        models = {role: model.model_copy(update=changes) for role, model in settings.models.items()}
        options = replace(options, role_models=models)
    if info is not None and info.settings is None and options.models and not (options.model or options.cassette):
        message = f"the run was made by an earlier version, which did not store the model of ideator `{ideator}`"
        hint = f"autoqec run --resume {info.run_id} --model NAME --budget usd=DOLLARS"
        raise UsageError(message, location="--resume", hint=hint)
    return options


def with_models(settings: RunSettings, options: RoleOptions) -> RunSettings:
    """Return the settings with the language model of each role, as it will be asked."""
    return settings.model_copy(update={"models": options.resolved_models()})


def _stored_path(path: Path | None, root: Path) -> str | None:
    if path is None:
        return None
    absolute = path.resolve()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else str(absolute)


def _path(stored: str | None, root: Path) -> Path | None:
    return None if stored is None else root / stored
