"""Checks of the output of a command."""

from __future__ import annotations


def check_error(stderr: str, *parts: str, hint: bool | None = None) -> tuple[str, str | None]:
    """Check that stderr holds one error in the documented form: `error: ...`, then perhaps `hint: ...`.

    Args:
        stderr: All that the command wrote to standard error.
        *parts: Texts that error or hint must contain.
        hint: Whether a hint must (True) or must not (False) follow; None allows both.

    Returns:
        The error and the hint, without their labels.
    """
    lines = stderr.strip().splitlines()
    assert lines and lines[0].startswith("error: "), stderr
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), stderr
    assert hint is None or hint == (len(lines) == 2), stderr
    for part in parts:
        assert part in stderr, stderr
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ") if len(lines) == 2 else None
