"""AutoQEC searches for neural predecoders of quantum error-correcting codes and verifies what it finds.

The functions below are loaded on first use, so that `import autoqec` stays fast and loads no torch.
"""

from typing import TYPE_CHECKING, Any

from autoqec.installation import __version__

if TYPE_CHECKING:
    from autoqec.api import (
        Interval,
        RoundResult,
        RunResult,
        decode,
        load_env,
        load_run,
        resume,
        run,
        verify,
    )

__all__ = [
    "Interval", "RoundResult", "RunResult", "__version__", "decode", "load_env", "load_run", "resume", "run", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        from autoqec import api

        return getattr(api, name)
    raise AttributeError(f"module 'autoqec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
