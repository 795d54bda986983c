"""The baselines a candidate is shown beside: every member on the same shots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoqec.contracts.verdict import PairedEffect, PanelMember
from autoqec.eval.bundle import CHUNK
from autoqec.qec import backends
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, sample
from autoqec.qec.stats import rate, wrong

REFERENCE_SEED = 2**62  # public, and apart from every candidate's draw
_REFERENCE: dict[tuple[str, str, str, int], tuple[int, int]] = {}


class Panel:
    """The env's baselines, built once; the plain backend is always among them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.names = tuple(dict.fromkeys((problem.env.plain, *problem.env.baselines)))
        self._members = {name: backends.make(name, problem) for name in self.names}

    def wrong(self, shots: Shots) -> dict[str, NDArray[np.bool_]]:
        """bool [n] a member: the shots it loses."""
        return {
            name: wrong(member.decode(shots.detectors), shots.observables) for name, member in self._members.items()
        }

    def table(self, effects: dict[str, PairedEffect]) -> tuple[PanelMember, ...]:
        rounds = self.problem.env.code.rounds
        return tuple(
            PanelMember(
                name=name,
                rate=rate(effects[name].counts.errors_reference, effects[name].counts.shots, rounds=rounds),
                against=effects[name],
                beats=effects[name].delta_low > 0,
            )
            for name in self.names
        )


def reference_errors(problem: Problem, shots: int) -> tuple[int, int]:
    """(errors, shots) of the plain backend on shots of the judge's own; drawn once a process and problem."""
    chunks = -(-shots // CHUNK)
    key = (problem.circuit_sha256, problem.env.plain, repr(problem.env.bp), chunks)
    if key not in _REFERENCE:
        backend = backends.make(problem.env.plain, problem)
        errors = 0
        for index in range(chunks):
            drawn = sample(problem, CHUNK, REFERENCE_SEED + index)
            errors += int(wrong(backend.decode(drawn.detectors), drawn.observables).sum())
        _REFERENCE[key] = (errors, chunks * CHUNK)
    return _REFERENCE[key]
