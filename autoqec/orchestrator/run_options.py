"""From the options of a call to the request for a run: parsed, merged into those of the run that is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoqec import locate
from autoqec.contracts.base import Contract, sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import RunInfo
from autoqec.contracts.pins import family_pins, format_pins, validate_pins
from autoqec.contracts.profiles import GROWING, default_scale
from autoqec.contracts.run_spec import OptionField, RunSpec, option_fields
from autoqec.errors import ContractError, UsageError
from autoqec.orchestrator.budget import Budget, parse_limits
from autoqec.orchestrator.plugin_protocols import RunRequest, run_plugins
from autoqec.qec.problem_memory import ModelSize
from autoqec.store.files import load_env, load_yaml
from autoqec.store.history import History
from autoqec.system.git import Repo

DEFAULT_ROUNDS = 3  # of a run without any limit


def request_run(env_name: str | None, given: Mapping[str, Any], resume: str | None = None) -> RunRequest:
    """Resolve the options of a run in the repository of the current directory; writes nothing.

    Args:
        env_name: Builtin env name or env file; None when a run is resumed.
        given: The options that the caller names, with underscores; values as on the command line.
        resume: Id or path of the run to resume.

    Raises:
        UsageError: An option is unknown or invalid, or contradicts the run that is resumed.
    """
    models: list[type[Contract]] = [RunSpec, *(plugin.Options for plugin in run_plugins())]
    known = {each.name: each for model in models for each in option_fields(model)}
    if unknown := sorted(set(given) - set(known)):
        raise UsageError("is not an option", location=unknown[0], hint=f"choose from {', '.join(sorted(known))}")
    given = {name: value for name, value in given.items() if value is not None or known[name].field.default is None}
    repo = Repo.discover(Path.cwd())
    root = Path(repo.root)
    limits = parse_limits(given.get("budget") or "", _budget_keys())
    if "rounds" in limits and given.get("rounds") is not None:
        raise UsageError("cannot be combined with --budget rounds=…", location="--rounds", hint="remove one of them")
    layout = locate.run_layout(resume, root=root) if resume else None
    info = History(layout).info() if layout else None
    parsed = {**given, "budget": limits, "pin": parse_pins(given.get("pin") or ())}
    if info is not None:
        _check_same(info, env_name, parsed)
        return RunRequest(repo, _merged(info.spec(), parsed, root), frozenset(given), layout=layout)
    if given.get("recorded") is not None:
        raise UsageError("needs --resume", location="--recorded", hint="the manifest of an env names the directory")
    if env_name is None:
        raise UsageError("is missing", location="ENV", hint="autoqec envs; then autoqec run NAME")
    spec = _merged(RunSpec(rounds=None if limits else DEFAULT_ROUNDS), parsed, root)
    env_path = locate.env_file(env_name)
    env = load_env(env_path)[0]
    scale, n_edges = (spec.scale, None) if "scale" in given else _default_scale(env, spec.profile)
    pins = family_pins(spec.pins, 1 + len(env.other_members))
    spec = spec.model_copy(update={"scale": scale, "pins": pins})
    return RunRequest(repo, spec, frozenset(given), env_path=env_path, n_edges=n_edges)


def parse_pins(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `training.loop=async`, … into config options that every proposal keeps; values are YAML."""
    pins: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key in pins or not (key and value):
            message = f"`{key}` is pinned twice" if key in pins else f"{text!r} is not KEY=VALUE"
            raise UsageError(message, location="--pin", hint="--pin training.loop=async")
        pins[key] = load_yaml(value, location=f"--pin {key}")
    try:
        return validate_pins(pins)
    except ContractError as error:
        raise UsageError(error.message, location="--pin", hint=error.hint or "choose another VALUE") from error


def _budget_keys() -> tuple[str, ...]:
    return (*asdict(Budget()), *(key for plugin in run_plugins() for key in plugin.Options.budget_keys))


def _merged(stored: RunSpec, parsed: Mapping[str, Any], root: Path) -> RunSpec:
    """Return the specification with the given options of the core and of extensions in place of the stored ones."""
    values: dict[str, Any] = stored.model_dump() | _values(RunSpec, parsed, root)
    values |= {"budget": {**stored.budget, **parsed["budget"]}, "pins": parsed["pin"] or stored.pins}
    if parsed["budget"] and parsed.get("rounds") is None:
        values["rounds"] = None
    try:
        spec = RunSpec.read(values, location="options")
        for plugin in run_plugins():
            block = plugin.Options.of(spec).model_dump() | _values(plugin.Options, parsed, root)
            spec = spec.with_block(plugin.Options.read(block))
    except ContractError as error:
        raise UsageError(error.message, location="options", hint="autoqec run --help") from error
    return spec


def _values(model: type[Any], parsed: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the given values of a model's fields."""
    fields = [each for each in option_fields(model) if each.name in parsed]
    return {each.field_name: _value(each, parsed[each.name], root) for each in fields}


def _value(field: OptionField, value: Any, root: Path) -> Any:
    """Return a value as the specification has it: stored paths relative to the workspace, others as they are."""
    if value is None or not field.option.path:
        return value
    if field.field.exclude:
        return Path(value)
    absolute = Path(value).resolve()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else str(absolute)


def _default_scale(env: EnvSpec, profile: str) -> tuple[float, int | None]:
    """Return the scale of a run for which none is chosen, and the edges that set it.

    They are those of the env's largest circuit. Recorded shots are as many as they are, so their amount does not grow;
    other inner decoders have no matching graph.
    """
    if profile not in GROWING or env.backend != "mwpm" or env.code.own_shots:
        return 1.0, None
    n_edges = max(ModelSize.of_env(each, each.target).n_edges for each in (env, *env.other_members))
    scale = default_scale(profile, n_edges)
    return scale, n_edges if scale != 1 else None


def _check_same(info: RunInfo, env_name: str | None, parsed: Mapping[str, Any]) -> None:
    """Raise UsageError for options that contradict those with which the run was started."""
    hint = f"autoqec run --resume {info.run_id}"
    if parsed.get("secret_file") is not None:
        raise UsageError("the run already has a secret", location="--secret-file", hint=hint)
    for each in option_fields(RunSpec):
        value, was = parsed.get(each.name), getattr(info, each.field_name)
        if each.option.fixed and value not in (None, {}, was):
            is_pin = each.name == "pin"
            shown = (format_pins(was) or "no pins", format_pins(value)) if is_pin else (was, value)
            location = f"--{each.name.replace('_', '-')} {shown[1]}"
            raise UsageError(f"the run was started with {shown[0]}", location=location, hint=hint)
    if env_name is not None:
        path = locate.env_file(env_name)
        if sha256_bytes(load_env(path)[1].encode()) != info.env_yaml_sha256:
            raise UsageError("is not the env that the run was started with", location=str(path), hint=hint)
