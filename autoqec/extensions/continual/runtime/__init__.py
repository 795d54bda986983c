"""RunTime: runs an agent over a dataset of environments and measures it while it learns."""

from __future__ import annotations

from autoqec.extensions.continual.runtime.config import RunConfig, RunTimeConfig, load_config
from autoqec.extensions.continual.runtime.runtime import RunTime

__all__ = ["RunConfig", "RunTime", "RunTimeConfig", "load_config"]
