"""Operational log of a run, logs/autoqec.log: one line per event with UTC time, level and round."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from autoqec.store.layout import RunLayout

if TYPE_CHECKING:
    from autoqec.contracts.events import Event, OnEvent

LOGGER = logging.getLogger("autoqec")
LOGGER.addHandler(logging.NullHandler())  # so that nothing is printed outside a run
MAX_BYTES, BACKUPS = 2_000_000, 5
OF_ROW = ("status", "status_reason", "verdict", "verify_verdict", "branch", "commit_sha")
_VALUE_CHARS = 400


class _OneLine(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO round=3 message`; a traceback is folded into the line of its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s round=%(round)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        if not hasattr(record, "round"):
            record.round = "-"
        return _printable(super().format(record))


class _RunFile(RotatingFileHandler):
    """A file handler for which a full disk or a deleted directory only loses the line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is of the standard library)
        pass

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(exist_ok=True)  # the run's own directory is never created here
        return super()._open()


class _Screen(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr, which a live display may redirect."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@contextmanager
def attach(layout: RunLayout) -> Iterator[None]:
    """Write the package's log to the run's log file for the duration of the context."""
    handler = _RunFile(layout.log_file, maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8", delay=True)
    handler.setFormatter(_OneLine())
    handler.setLevel(logging.INFO)
    if LOGGER.getEffectiveLevel() > logging.INFO:
        LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    try:
        yield
    except BaseException as error:
        LOGGER.error("stopped by %s: %s", type(error).__name__, error, exc_info=True)
        raise
    finally:
        LOGGER.removeHandler(handler)
        with suppress(OSError):  # closing flushes, which fails on a full disk
            handler.close()


def show(verbosity: int) -> None:
    """Show the log on stderr: events for `-v`, also progress for `-vv`. A second call replaces the first."""
    LOGGER.handlers[:] = [handler for handler in LOGGER.handlers if not isinstance(handler, _Screen)]
    handler = _Screen()
    handler.setFormatter(_OneLine())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)


def logged(on_event: OnEvent | None) -> OnEvent:
    """Return a callback that writes each event to the log and then calls `on_event`."""

    def record_and_forward(event: Event) -> None:
        record(event)
        if on_event is not None:
            on_event(event)

    return record_and_forward


def record(event: Event) -> None:
    """Log one event with its kind and plain values; nested values are in other files of the run."""
    level = logging.DEBUG if event.frequent else logging.INFO
    if not LOGGER.isEnabledFor(level):
        return
    from autoqec.contracts.events import RoundRecorded, RunRecovered  # most commands log nothing

    payload = event.payload()
    extra = {"round": payload.get("round", "-")}
    of_row = {key: getattr(event.row, key) for key in OF_ROW} if isinstance(event, RoundRecorded) else {}
    LOGGER.log(level, "%s%s", event.kind, _fields({**of_row, **payload}), extra=extra)
    for action in event.actions if isinstance(event, RunRecovered) else ():
        LOGGER.log(level, "%s action%s", event.kind, _fields(action), extra=extra)


def _fields(payload: Mapping[str, Any]) -> str:
    lists = {key: "; ".join(map(str, payload[key])) for key in ("reasons", "notes") if payload.get(key)}
    named = {**payload, **lists}
    plain = {key: value for key, value in named.items() if isinstance(value, str | int | float) and key != "round"}
    return "".join(f" {key}={json.dumps(value, ensure_ascii=False)[:_VALUE_CHARS]}" for key, value in plain.items())


def _printable(text: str) -> str:
    """Return untrusted text as one line without control characters."""
    lines = " | ".join(line.strip() for line in text.splitlines())
    if lines.isprintable():
        return lines
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in lines)
