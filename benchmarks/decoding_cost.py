"""CPU time of a packaged translation-invariant model on other distances and numbers of rounds, by part of the decoder.

`python -m benchmarks.decoding_cost surface_family_d7 7,7,4000 7,70,100 5,5,8000,.003`: distance, rounds, shots, and p.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.models import model_path
from autoqec.qec import backends, sampling
from benchmarks.problems import surface

REPEATS, SEED = 3, 2**33 + 5


def least_us(works: dict[str, Callable[[], object]], shots: int) -> dict[str, float]:
    """Return the least CPU microseconds per shot of each function; repetitions alternate."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(REPEATS):
        for name, work in works.items():
            start_s = time.process_time()
            work()
            least[name] = min(least[name], 1e6 * (time.process_time() - start_s) / shots)
    return least


def main(model: str, distance: int, rounds: int, shots: int, p: float = 0.005) -> None:
    """Print the times of one circuit."""
    problem = surface(distance, p, rounds)
    decoder = CheckpointDecoder.of_other_circuit(problem, model_path(model))
    events = sampling.sample(problem, shots, SEED).detection_events
    baselines = {name: backends.make_backend(name, problem).decode for name in ("mwpm", "mwpm_correlated")}
    gated = decoder.decoder
    selection = gated.select(events)
    ambiguous = selection.detection_events
    log_odds = decoder.log_odds(ambiguous)
    us = least_us(
        {
            "plain": lambda: baselines["mwpm"](events),
            "correlated": lambda: baselines["mwpm_correlated"](events),
            "model": lambda: decoder.decode(events),
            "gap": lambda: gated.select(events),
            "network": lambda: decoder.log_odds(ambiguous),
            "matching": lambda: gated.inner.decode_soft(ambiguous, log_odds),
        },
        shots,
    )
    times = ", ".join(f"{name} {value:.2f}" for name, value in us.items())
    ratio, share = us["model"] / us["correlated"], len(selection) / shots
    print(
        f"d={distance} r={rounds} p={p} {shots} shots: us {times}; ratio {ratio:.2f}; {share:.3f} ambiguous", flush=True
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for circuit in sys.argv[2:]:
        d, r, n, *rest = circuit.split(",")
        main(sys.argv[1], int(d), int(r), int(n), *map(float, rest))
