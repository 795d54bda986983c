"""Where the shots of a run come from: sampled from the env's circuit, or brought by its code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoqec.contracts.events import OnEvent
from autoqec.qec import sampling
from autoqec.qec.problem import Problem

VAL_KEY = "val"  # one seed per env: every round is measured on the same shots


class ShotSource(Protocol):
    """Labelled shots of one env, for validation and for training on decoding failures."""

    def validation(self, n: int) -> sampling.Shots:
        """Return the first `n` validation shots; a source may have fewer."""
        ...

    def training(self, n: int, seed: int) -> sampling.Shots:
        """Return `n` training shots; the same seed gives the same shots."""
        ...


class RunShots(Protocol):
    """Shots that the code of an env brings, checked for one run."""

    @property
    def directory(self) -> Path:
        """Directory of their files."""
        ...

    def provide(self, round_dir: Path, on_event: OnEvent, *, moved: bool = False) -> None:
        """Put what rounds may read beside a round directory, and note the directory of the files for the verifier.

        Args:
            round_dir: The round directory.
            on_event: Receives the progress.
            moved: Whether the run may know another directory of the files.

        Raises:
            UsageError: Shots of another code are there.
        """
        ...


@dataclass(frozen=True)
class SimulatedShots:
    """Shots that are sampled from an env's circuit.

    Attributes:
        problem: The env at its target.
    """

    problem: Problem

    def validation(self, n: int) -> sampling.Shots:
        """Sample `n` shots, always the same ones."""
        return sampling.sample(self.problem, n, sampling.band_seed(self.problem.env.seed_policy.val, VAL_KEY))

    def training(self, n: int, seed: int) -> sampling.Shots:
        """Sample `n` shots of a seed."""
        return sampling.sample(self.problem, n, seed)


def shot_source(problem: Problem, directory: Path | None = None, *, simulated: bool = False) -> ShotSource:
    """Return the source of the shots of an env.

    Args:
        problem: The env at its target.
        directory: Directory of the shots that rounds may read, if the env's code brings its own.
        simulated: Train on sampled shots nevertheless.

    Raises:
        UsageError: The env's code brings its own shots, and there is no directory.
    """
    own: ShotSource | None = problem.env.code.shot_source(problem, directory, simulated)
    return SimulatedShots(problem) if own is None else own
