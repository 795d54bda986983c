"""Import of packages that only an extra of the distribution installs."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from autoqec.errors import UsageError


def require_installed(package: str, *, extra: str, location: str | None = None) -> None:
    """Check that `package` is installed, without importing it.

    Args:
        package: Name of the package as it is imported.
        extra: The extra of autoqec that installs it.
        location: Option or field that needs the package, for the error.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # the package above it
        spec = None
    except ValueError:  # in sys.modules without a spec: imported in a way of its own, but there
        return
    if spec is None or spec.origin is None:  # without origin: a folder of that name in the current directory
        message, hint = f"the package '{package}' is not installed", f"pip install 'autoqec[{extra}]'"
        raise UsageError(message, location=location, hint=hint)


def load(module: str, *, extra: str, location: str | None = None) -> ModuleType:
    """Import `module` of an optional package; arguments and errors as `require_installed`."""
    require_installed(module.split(".")[0], extra=extra, location=location)
    return importlib.import_module(module)
