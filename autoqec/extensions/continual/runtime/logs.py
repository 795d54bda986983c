"""Loggers that belong to one run: created with it, passed to its components, closed with it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path
from typing import Literal, TextIO

from autoqec import optional

LogFormat = Literal["text", "json"]
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


def setup_logger(
    name: str,
    level: str,
    log_path: Path | str,
    extra: Mapping[str, object] | None = None,
    *,
    console: TextIO | None = None,
    log_format: LogFormat = "text",
    max_bytes: int | None = None,
    backups: int = 5,
) -> logging.Logger:
    """Return a logger that writes to a file and optionally to a console, whose lines are always text.

    It is not registered in logging's global table, so that two runs in one process never share handlers.

    Args:
        name: Name of the logger.
        level: DEBUG, INFO, WARN or ERROR.
        log_path: File that lines are appended to.
        extra: Fields added to each line.
        console: Stream that receives the lines as well.
        log_format: `json` writes one object per line into the file.
        max_bytes: Size at which the file is rotated to `<log_path>.1`; None never rotates it.
        backups: Number of rotated files that are kept.
    """
    logger = logging.Logger(name, _LEVELS[level])
    logger.propagate = False
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s%(fields)s: %(message)s", _TIME_FORMAT)
    text.converter = time.gmtime
    file = RotatingFileHandler(log_path, maxBytes=max_bytes or 0, backupCount=backups, encoding="utf-8")
    handlers: list[tuple[logging.Handler, logging.Formatter]] = [(file, _Json() if log_format == "json" else text)]
    if console is not None:
        handlers.append((_Console(console), text))
    for handler, formatter in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(_Fields())
        logger.addHandler(handler)
    _add_fields(logger, extra)
    return logger


def child_logger(logger: logging.Logger, name: str, extra: Mapping[str, object] | None = None) -> logging.Logger:
    """Return a logger that uses the parent's handlers under a name and fields of its own."""
    made = logging.Logger(f"{logger.name}.{name}", logger.level)
    made.parent = logger
    _add_fields(made, extra)
    return made


@contextmanager
def package_warnings() -> Iterator[Callable[[logging.Logger], None]]:
    """Collect the package's warnings inside the block, such as those of language-model clients.

    Yields:
        A function that writes them, and all that follow, to the logger of the run.
    """
    package = logging.getLogger("autoqec")
    buffer = MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1)
    buffer.setLevel(logging.WARNING)

    def write_to(logger: logging.Logger) -> None:
        buffer.setTarget(_Forward(logger))
        buffer.flush()
        buffer.capacity = 1

    package.addHandler(buffer)
    try:
        yield write_to
    finally:
        package.removeHandler(buffer)


def close(logger: logging.Logger) -> None:
    """Close the handlers; later lines are dropped."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.NullHandler())


def _add_fields(logger: logging.Logger, extra: Mapping[str, object] | None) -> None:
    """Attach `extra` to every record of this logger."""
    if extra:
        fields = dict(extra)

        def add(record: logging.LogRecord) -> bool:
            record.autoqec_fields = fields
            return True

        logger.addFilter(add)


class _Console(logging.StreamHandler[TextIO]):
    """Stream handler that does not break progress bars on the same stream."""

    def emit(self, record: logging.LogRecord) -> None:
        optional.load("tqdm", extra="evaluate").tqdm.write(self.format(record), file=self.stream)


class _Forward(logging.Handler):
    """Passes records on to a logger."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.handle(record)


class _Json(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the fields, and a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, _TIME_FORMAT),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "autoqec_fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class _Fields(logging.Filter):
    """Formats fields as ` [key=value …]`."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields: dict[str, object] = getattr(record, "autoqec_fields", {})
        record.fields = " [" + " ".join(f"{key}={value}" for key, value in fields.items()) + "]" if fields else ""
        return True
