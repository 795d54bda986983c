"""Block decoder libraries in the candidate process, since a predecoder that calls a baseline is that baseline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

LIBRARIES = (
    "pymatching", "ldpc", "sinter", "fusion_blossom", "mwpf", "tesseract_decoder", "relay_bp", "chromobius",
    "beliefmatching", "bposd", "astar_decoder", "panqec", "qecsim",
)  # fmt: skip
OWN = ("autoqec.qec._match",)  # weighted matching in C
_QEC = Path(__file__).parents[2] / "qec"


def files() -> tuple[Path, ...]:
    """Return the installed files and directories of every library, for the sandbox to hide."""
    found = [path for name in LIBRARIES for path in _places(PathFinder.find_spec(name))]
    return tuple(dict.fromkeys([*found, *_places(PathFinder.find_spec(OWN[0], [str(_QEC)]))]))


def _places(spec: ModuleSpec | None) -> list[Path]:
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


def block() -> None:
    """Make every import of them in this process fail with a message. The sandbox hides the files themselves."""
    sys.meta_path.insert(0, _Blocked())


class _Blocked(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.split(".")[0] in LIBRARIES or fullname in OWN:
            raise ModuleNotFoundError(
                f"{fullname} is a decoder library: a predecoder is verified without them", name=fullname
            )
        return None
