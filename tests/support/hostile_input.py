"""Hostile files for fuzzing: mutations of valid ones, and a watch over side effects of reading them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from autoqec.installation import PACKAGE_DIR

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, -(10**40), 0.5, 1e308, float("nan"), float("inf")),
    *("", "\x00", "\x1b[2J", "\ud800", "../../outside", "/etc/passwd", "--help", "a" * 5000, "sinter:os:abort:x"),
    *("file:///etc/passwd", "!!python/object/apply:os.abort []", "1e999", "2026-13-45T99:99:99Z", "NaN"),
    *([], {}, [[]], {"": {}}, {"kind": "dem_file", "path": "/etc/passwd"}, {"kind": "stim_file", "path": "../../x"}),
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {
    "os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1,
    "os.link": 2, "os.symlink": 2, "shutil.rmtree": 1,
}  # fmt: skip
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty", "socket.connect")


@st.composite
def mutated_bytes(draw: st.DrawFn, honest: bytes) -> bytes:
    """Return file contents with some bytes replaced, removed, repeated or inserted."""
    data = bytearray(honest)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 2, 8, 200, 10**6])))
        part = draw(st.one_of(st.binary(max_size=12), st.just(bytes(data[start:end]) * 2)))
        data[start:end] = part
    return bytes(data)


@st.composite
def mutated_value(draw: st.DrawFn, honest: Any) -> Any:
    """Return a JSON value with one part replaced by a hostile one, removed, or copied to another position."""
    value = json.loads(json.dumps(honest))
    for _ in range(draw(st.integers(1, 3))):
        paths = list(_paths_of(value))
        if not paths:
            return deepcopy(draw(st.sampled_from(VALUES)))
        holder, key = draw(st.sampled_from(paths))
        action = draw(st.sampled_from(["replace", "replace", "replace", "remove", "move", "nest"]))
        if action == "remove":
            del holder[key]
        elif action == "move":
            other, name = draw(st.sampled_from(paths))
            holder[key] = json.loads(json.dumps(other[name]))
        elif action == "nest":
            holder[key] = [[holder[key]]] if draw(st.booleans()) else {"key": holder[key]}
        else:
            holder[key] = deepcopy(draw(st.sampled_from(VALUES)))
    return value


def _paths_of(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(items):
        yield value, key
        yield from _paths_of(part)


CODE = (PACKAGE_DIR.resolve().parent, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())


class _Watch:
    """Records audit events while a block runs."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.found: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.inside is None:
            return
        if event in STARTS:
            arguments = args[1] if event == "subprocess.Popen" else args
            if not _is_git(arguments):
                self.found.append(f"{event} {arguments!r}")
        elif event == "open" and isinstance(args[2], int) and args[2] & WRITES:
            if isinstance(args[0], int) or not os.path.isdir(args[0]):  # in a directory: an unnamed temporary file
                self._changed(event, args[0])
        elif event in CHANGES:
            for path in args[: CHANGES[event]]:
                self._changed(event, path)

    def _changed(self, event: str, path: Any) -> None:
        if isinstance(path, int) or os.fsdecode(path) == os.devnull:
            return
        absolute = os.path.abspath(os.fsdecode(path))
        place = Path(os.path.realpath(os.path.dirname(absolute)))
        is_byte_code = "__pycache__" in (place.name, os.path.basename(absolute))
        if is_byte_code and any(place.is_relative_to(root) for root in CODE):
            return  # the interpreter caches a module that a command imports for the first time
        if self.inside is not None and not place.is_relative_to(self.inside):
            self.found.append(f"{event} {path!r}")


def _is_git(arguments: Any) -> bool:
    """Return whether a command line starts git, also through `env -i NAME=VALUE … git`."""
    if not isinstance(arguments, list | tuple):
        return False
    parts = [os.path.basename(os.fsdecode(argument)) for argument in arguments]
    if parts[:2] == ["env", "-i"]:
        parts = [
            part for part, argument in zip(parts[2:], arguments[2:], strict=True) if "=" not in os.fsdecode(argument)
        ]
    return parts[:1] == ["git"]


_WATCH = _Watch()
sys.addaudithook(_WATCH)  # audit hooks cannot be removed; without `inside` it does nothing


@contextmanager
def only_inside(directory: Path) -> Iterator[None]:
    """Assert that the block changes no file outside `directory` and starts no process but git."""
    _WATCH.found, _WATCH.inside = [], directory.resolve()
    try:
        yield
    finally:
        _WATCH.inside = None
    assert not _WATCH.found, _WATCH.found
