"""Text from models, logs and files, made safe for a prompt: one line, bounded length, fenced as data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

_TRUNCATED = "(and more)"
_DIRECTORY = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+")


def sanitize(text: Any, limit: int) -> str:
    """Return text as one line without control characters and without directories of this machine.

    Args:
        text: Any value; None is the empty string.
        limit: Maximum number of characters.
    """
    cleaned = " ".join("".join(ch if ch.isprintable() else " " for ch in str(text or "")).split())
    cleaned = _DIRECTORY.sub("", cleaned)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def sanitize_lines(text: str, limit: int) -> str:
    """Return the last `limit` characters of code or of a log, without control characters and directories."""
    lines = ("".join(c if c.isprintable() else " " for c in line.expandtabs(4))[:200] for line in text.splitlines())
    return _DIRECTORY.sub("", "\n".join(lines))[-limit:]


def data_block(name: str, text: str) -> str:
    """`text` as a data block. The tag contains the hash of the text, so the text cannot close its own block."""
    tag = f"data-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    return f'<{tag} name="{name}">\n{text}\n</{tag}>'


def fitted_block(name: str, lines: Iterable[str], limit: int) -> str:
    """As many whole lines as fit into a data block of `limit` characters; empty without lines."""
    text = fit_lines(lines, limit - len(data_block(name, "")))
    return data_block(name, text) if text else ""


def fit_lines(lines: Iterable[str], limit: int) -> str:
    """As many whole lines as fit into `limit` characters, with a note where lines were left out.

    Lines are consumed lazily: those that do not fit are not computed.
    """
    kept: list[str] = []
    remaining = limit - len(_TRUNCATED)
    for line in lines:
        if not line:
            continue
        if len(line) + 1 > remaining:
            return "\n".join([*kept, _TRUNCATED])
        kept.append(line)
        remaining -= len(line) + 1
    return "\n".join(kept)
