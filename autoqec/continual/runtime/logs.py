"""Loggers that belong to one run: created with it, passed to its components, closed with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from autoqec import optional

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


def setup_logger(
    name: str,
    level: str,
    log_path: Path | str,
    extra: Mapping[str, object] | None = None,
    *,
    console: TextIO | None = None,
) -> logging.Logger:
    """Return a logger that writes to a file and optionally to a console.

    It is not registered in logging's global table, so that two runs in one process never share handlers.

    Args:
        name: Name of the logger.
        level: DEBUG, INFO, WARN or ERROR.
        log_path: File that lines are appended to.
        extra: Fields added to each line.
        console: Stream that receives the lines as well.
    """
    logger = logging.Logger(name, _LEVELS[level])
    logger.propagate = False
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s%(fields)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handlers: list[logging.Handler] = [logging.FileHandler(log_path, encoding="utf-8")]
    if console is not None:
        handlers.append(_Console(console))
    for handler in handlers:
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


class _Fields(logging.Filter):
    """Formats fields as ` [key=value …]`."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields: dict[str, object] = getattr(record, "autoqec_fields", {})
        record.fields = " [" + " ".join(f"{key}={value}" for key, value in fields.items()) + "]" if fields else ""
        return True
