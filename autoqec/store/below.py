"""Paths of layouts as attributes: `metrics = Below("metrics.json")`."""

from __future__ import annotations

from pathlib import Path
from typing import overload


class Below:
    """A path below the directory of a layout.

    Args:
        parts: Names of directories, and of the file.
        of: Attribute of the layout that holds the directory.
    """

    def __init__(self, *parts: str, of: str = "dir") -> None:
        self._parts, self._directory = parts, of

    @overload
    def __get__(self, layout: None, owner: type) -> Below: ...

    @overload
    def __get__(self, layout: object, owner: type) -> Path: ...

    def __get__(self, layout: object | None, owner: type) -> Below | Path:
        """Return the path of a layout; of the class, the attribute itself."""
        if layout is None:
            return self
        directory: Path = getattr(layout, self._directory)
        return directory.joinpath(*self._parts)
