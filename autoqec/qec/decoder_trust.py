"""Trust in external decoders: those that installed packages register, and those named on the command line.

An env file is data and may come from others, so it cannot choose code by itself. A baseline
`sinter:MODULE:FUNCTION:DECODER` is loaded only where an installed package registers `MODULE:FUNCTION` under the
entry-point group `autoqec.decoders`, or where the user names it with `--trust-decoder`. Nothing is imported here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder

from autoqec.contracts.env import SINTER_DECODER
from autoqec.errors import UsageError

ENTRY_POINT_GROUP = "autoqec.decoders"
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class ExternalDecoderSpec:
    """An external decoder: `module.function()` returns `sinter.Decoder` objects by name.

    Attributes:
        module: Module of the function.
        function: Name of the function.
        decoder: Key of the decoder in the function's result.
        hint: How to install it.
        split: Whether the decoder accepts error mechanisms that are decomposed with `^`.
        known: Whether autoqec itself names the code, so that the env does not choose it.
    """

    module: str
    function: str
    decoder: str
    hint: str
    split: bool = True
    known: bool = False

    @property
    def source(self) -> str:
        """Return `MODULE:FUNCTION`, as in an entry point and in `--trust-decoder`."""
        return f"{self.module}:{self.function}"


KNOWN = {
    # https://github.com/quantumlib/tesseract-decoder
    "tesseract": ExternalDecoderSpec(
        *("tesseract_decoder", "make_tesseract_sinter_decoders_dict", "tesseract"),
        hint="pip install tesseract-decoder",
        split=False,
        known=True,
    ),
    # https://github.com/trmue/relay
    "relay_bp": ExternalDecoderSpec(
        *("relay_bp.stim", "sinter_decoders", "relay-bp"),
        hint="pip install 'relay-bp[stim]' (it needs Rust)",
        split=False,
        known=True,
    ),
}


@dataclass(frozen=True)
class _Trust:
    functions: frozenset[str] = frozenset()
    registered: bool = True


_trust = _Trust()  # of this process; set by the command line


def trust_decoders(functions: Iterable[str] = (), *, registered: bool = True) -> None:
    """Set which external decoders this process may load; replaces what was set before.

    Args:
        functions: `MODULE:FUNCTION` of each trusted function.
        registered: Whether decoders that installed packages register are trusted too.

    Raises:
        UsageError: A name is not of the form `MODULE:FUNCTION`.
    """
    global _trust
    functions = frozenset(functions)
    for name in sorted(functions):
        if not FUNCTION.fullmatch(name):
            hint = "--trust-decoder MODULE:FUNCTION, as in the name sinter:MODULE:FUNCTION:DECODER of a baseline"
            raise UsageError(f"{name!r} is not of the form MODULE:FUNCTION", location="--trust-decoder", hint=hint)
    _trust = _Trust(functions, registered)


def trusted_functions() -> frozenset[str]:
    """Return `MODULE:FUNCTION` of the functions that `trust_decoders` was given."""
    return _trust.functions


def external_decoder(name: str) -> ExternalDecoderSpec | None:
    """Return the external decoder that a baseline names; None for a built-in decoder."""
    if match := SINTER_DECODER.fullmatch(name):
        hint = f"pip install the package that provides {match['module']}, or remove the baseline"
        return ExternalDecoderSpec(match["module"], match["function"], match["decoder"], hint)
    return KNOWN.get(name)


def locate(name: str, spec: ExternalDecoderSpec, *, location: str) -> ModuleSpec:
    """Find the installed top-level module of a trusted decoder, without importing it.

    Raises:
        UsageError: The decoder is not trusted or not installed.
    """
    if not spec.known and spec.source not in _trust.functions:
        if not _trust.registered:
            message = f"decoder {name!r} is named by an env from an archive and is not trusted"
            raise UsageError(message, location=location, hint=f"if you know the package: --trust-decoder {spec.source}")
        if spec.source not in registered_functions():
            message = f"decoder {name!r} is neither registered by an installed package nor trusted"
            hint = f"remove the baseline or, if you know the package: --trust-decoder {spec.source}"
            raise UsageError(message, location=location, hint=hint)
    found = PathFinder.find_spec(spec.module.partition(".")[0], _import_path())
    if found is None or found.origin is None:
        raise UsageError(f"decoder {name!r} is not installed", location=location, hint=spec.hint)
    return found


def registered_functions() -> frozenset[str]:
    """Return `MODULE:FUNCTION` of every entry point in the group `autoqec.decoders`."""
    distributions = metadata.distributions(path=_import_path())
    return frozenset(
        point.value.replace(" ", "")
        for distribution in distributions
        for point in distribution.entry_points
        if point.group == ENTRY_POINT_GROUP
    )


def _import_path() -> list[str]:
    """Return `sys.path` without the current directory, which `python -m` adds: its files may be untrusted."""
    current = os.path.realpath(os.curdir)
    return [entry for entry in sys.path if entry and os.path.realpath(entry) != current]
