"""Times of decoding: CPU time of a call, and quantiles of the times of single shots."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def cpu_timed(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> tuple[Result, float]:
    """Return the result of a call and the CPU time of this process in seconds.

    Elapsed time would depend on the load of the machine.
    """
    start_s = time.process_time()
    result = function(*args, **kwargs)
    return result, time.process_time() - start_s


def latency_quantiles(elapsed_us: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median, the 99th and the 99.9th percentile of times, in their unit."""
    p50, p99, p999 = (float(value) for value in np.quantile(elapsed_us, (0.5, 0.99, 0.999)))
    return p50, p99, p999
