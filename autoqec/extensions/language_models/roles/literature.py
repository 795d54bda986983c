"""Notes on what is known about predecoders, which ship with the package."""

from __future__ import annotations

from autoqec.errors import UsageError
from autoqec.installation import PACKAGE_DIR

NOTES = PACKAGE_DIR / "data" / "background"


def topics() -> list[str]:
    """Return the names of the notes."""
    return sorted(path.stem for path in NOTES.glob("*.md"))


def read_note(topic: str) -> str:
    """Return a note. UsageError lists the topics."""
    if topic not in topics():
        raise UsageError(f"no note on {topic!r}", location="topic", hint=f"one of {', '.join(topics())}")
    return (NOTES / f"{topic}.md").read_text(encoding="utf-8")
