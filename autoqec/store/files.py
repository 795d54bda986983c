"""Reads and writes YAML, and loads env files."""

from __future__ import annotations

import errno
import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error, unknown_key
from autoqec.contracts.code_source import FileCode
from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.store import atomic

MAX_BYTES = 16 * 2**20
_MAX_DEPTH = 32
_TAG = "tag:yaml.org,2002:"
# Core schema of YAML 1.2: 1e-3 is a number, `no` and 2024-01-01 are strings, 010 is ten.
_NULL = re.compile(r"^(?:~|null|)$")
_BOOL = re.compile(r"^(?:true|false)$")
_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$")
_KINDS = (("null", _NULL, ["~", "n", ""]), ("bool", _BOOL, list("tf")))
_NUMBERS = (("int", _INT, list("-+0123456789")), ("float", _FLOAT, list("-+.0123456789")))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1 or 1.2 would read as another type."""


for _kind, _pattern, _first in _KINDS + _NUMBERS:
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _kind, _pattern, _first)


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _yaml_error(f"key {key!r} is not a string", key_node.start_mark)
        if key in result:
            raise _yaml_error(f"key `{key}` occurs twice", key_node.start_mark)
        result[key] = loader.construct_object(value_node, deep=True)
    return result


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    if len(node.value) > 30:
        raise _yaml_error("an integer of more than 30 digits", node.start_mark)
    return int(node.value)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    text = node.value.lower()
    value = float(text) if text[-3:] not in ("inf", "nan") else math.nan
    if not math.isfinite(value):
        raise _yaml_error(f"{node.value} is not a finite number", node.start_mark)
    return value


def _represent_str(dumper: Any, value: str) -> yaml.ScalarNode:
    # Only double quotes preserve Unicode line breaks and control characters.
    node: yaml.ScalarNode = dumper.represent_scalar(_TAG + "str", value, style=None if value.isprintable() else '"')
    return node


_Dumper.add_representer(str, _represent_str)
_Loader.add_constructor(_TAG + "map", _construct_mapping)
_Loader.add_constructor(_TAG + "int", _construct_int)
_Loader.add_constructor(_TAG + "float", _construct_float)


def _yaml_error(what: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=mark)


def load_yaml(text: str, *, location: str) -> Any:
    """Load plain values from YAML, without tags, anchors, aliases, duplicate keys or NaN; size and depth are limited.

    Args:
        text: The YAML document.
        location: Name of its source, for errors.

    Raises:
        UsageError: The document is not allowed or not YAML; names `location` and the line.
    """
    if len(text) > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES >> 20} MiB", location=location, hint="make the file smaller")
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f"{location}:{error.problem_mark.line + 1}" if error.problem_mark else location
        raise UsageError(error.problem or "is not valid YAML", location=line, hint=f"edit {location}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(
            f"is not valid YAML: {str(error).splitlines()[0]}", location=location, hint=f"edit {location}"
        ) from error


def _check_events(text: str) -> None:
    """Reject aliases, tags and deep nesting on the event stream, before any value is constructed."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _yaml_error("anchors and aliases are not allowed", event.start_mark)
        if tag := getattr(event, "tag", None):
            raise _yaml_error(f"tags are not allowed ({tag})", event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise _yaml_error(f"nested deeper than {_MAX_DEPTH}", event.start_mark)


def dump_config(config: dict[str, Any]) -> str:
    """Return YAML with a blank line between any two keys, in the given order; `load_yaml` returns the same value.

    With the blank lines `git merge` merges edits of different keys and reports conflicts for edits of the same key.
    """
    return "\n".join(_paragraphs(config, ""))


def _paragraphs(config: dict[str, Any], indent: str) -> list[str]:
    out = []
    for key, value in config.items():
        if isinstance(value, dict) and value:
            out += [f"{indent}{_inline_yaml(key)}:\n", *_paragraphs(value, indent + "  ")]
        elif isinstance(value, str) and "\n" in value and _fits_block(value):
            body = "".join(f"{indent}  {line}\n" if line else "\n" for line in value.removesuffix("\n").split("\n"))
            out.append(f"{indent}{_inline_yaml(key)}: {'|' if value.endswith(chr(10)) else '|-'}\n{body}")
        else:
            out.append(f"{indent}{_inline_yaml(key)}: {_inline_yaml(value)}\n")
    return out


def _inline_yaml(value: Any) -> str:
    """Return a plain value as one line of YAML."""
    if value is None or isinstance(value, str | int | float):
        return _scalar_yaml(value, repr(value))
    return _dump_inline(list(value) if isinstance(value, tuple) else value)


@lru_cache(maxsize=1024, typed=True)
def _scalar_yaml(value: str | float | None, representation: str) -> str:
    """As `_inline_yaml`, once per value: the keys and most values of configs repeat. 0.0 and -0.0 are equal."""
    return _dump_inline(value)


def _dump_inline(value: Any) -> str:
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        width=math.inf,
        allow_unicode=True,
        sort_keys=False,
    )
    return str(text).removesuffix("\n").removesuffix("\n...")


def _fits_block(text: str) -> bool:
    """Return whether a literal block followed by a blank line represents `text` exactly."""
    lines = text.split("\n")
    plain = all(line.isprintable() or not line.replace("\t", "").strip() for line in lines)
    return plain and not text.endswith("\n\n") and text[:1] not in (" ", "\t", "\n")


def read_text(path: Path | str, *, what: str = "file", hint: str | None = None) -> str:
    """Return the text of a regular UTF-8 file of at most MAX_BYTES. Raises UsageError for anything else."""
    try:
        return read_bytes(path, what=what, hint=hint).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text", location=str(path), hint=hint) from error


def read_bytes(path: Path | str, *, what: str = "file", hint: str | None = None) -> bytes:
    """Return the content of a regular file of at most MAX_BYTES.

    Raises:
        UsageError: The file cannot be read, is larger, or is a directory, a FIFO or a device.
    """
    try:
        data = atomic.read_bytes(path, MAX_BYTES + 1)
    except OSError as error:
        problem = error.strerror if error.errno == errno.ENXIO else f"cannot be read: {error.strerror}"
        raise UsageError(f"{what} {problem}", location=str(path), hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{what} is larger than {MAX_BYTES >> 20} MiB", location=str(path), hint=hint)
    return data


def load_env(path: Path | str) -> tuple[EnvSpec, str]:
    """Load an env file.

    Args:
        path: The env file.

    Returns:
        The env and its frozen text, which contains the text of circuit files and every default. The text is a
        function of the env, and `parse_env` returns the same env from it.

    Raises:
        UsageError: The file cannot be read or is invalid.
    """
    path = Path(path)
    hint = "`autoqec envs` lists the built-in ones; `autoqec init DIR` writes one"
    text = read_text(path, what="env file", hint=hint)
    env = env_from_data(load_yaml(text, location=str(path)), location=str(path), directory=path.parent)
    return env, dump_config(env.dump())


def env_from_data(data: Any, *, location: str, directory: Path, hint: str | None = None) -> EnvSpec:
    """Return an env from plain values, with the text of its code file included.

    Args:
        data: The content of an env file.
        location: Name of the source, for errors.
        directory: The directory that a relative path of the code file starts from.
        hint: Replaces the hint of errors.

    Raises:
        UsageError: The env is invalid, or its code file cannot be read.
    """
    env = _validate(data, location=location, hint=hint)
    if isinstance(env.code, FileCode) and env.code.text is None:
        hint = hint or f"correct `code.path` in {location} (relative to that file)"
        content = read_text(directory / env.code.path, what="code file", hint=hint)
        env = env.model_copy(update={"code": env.code.with_content(content, directory, hint)})
        try:
            env.require_predictions()
        except ValueError as error:
            raise UsageError(str(error), location=location, hint="correct `baselines`") from error
    return env


def parse_env(text: str, *, location: str) -> EnvSpec:
    """Parse a frozen env, once per process and text.

    Raises:
        UsageError: It is invalid, or lacks the text of its circuit file; `location` says where.
    """
    try:
        return _parse_env_once(text)
    except UsageError:
        return _parse_env(text, location)  # again, for a message that names the place


@lru_cache(maxsize=8)
def _parse_env_once(text: str) -> EnvSpec:
    return _parse_env(text, "env")


def _parse_env(text: str, location: str) -> EnvSpec:
    env = _validate(load_yaml(text, location=location), location=location)
    if isinstance(env.code, FileCode) and env.code.text is None:
        raise UsageError(
            "`code.text` is missing: the env is not frozen", location=location, hint="load it from its env file"
        )
    return env


def _validate(data: Any, *, location: str, hint: str | None = None) -> EnvSpec:
    try:
        return EnvSpec.model_validate(data)
    except ValidationError as error:
        hint = hint or f"edit {location}"
        unknown = unknown_key(error, data, EnvSpec)
        if unknown is not None:
            from difflib import get_close_matches

            key, known = unknown
            *parents, name = key.split(".")
            if near := get_close_matches(name, known):
                hint = f"perhaps {', '.join('.'.join([*parents, one]) for one in near)}"
            raise UsageError(f"unknown key `{key}`", location=location, hint=hint) from error
        raise UsageError(first_validation_error(error, data), location=location, hint=hint) from error
