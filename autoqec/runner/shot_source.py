"""Labelled shots for validation, and for training on decoding failures: sampled, or recorded training blocks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.recorded.shots import SILENT, Progress, RecordedShots
from autoqec.extensions.recorded.split import PARTS, Split, VisibleShots, write_visible
from autoqec.qec import sampling
from autoqec.qec.problem import Problem
from autoqec.store import atomic
from autoqec.store.layout import recorded_location, visible_shots

VAL_KEY = "val"  # one seed per env: every round is measured on the same shots


@dataclass(frozen=True)
class ShotSource:
    """Source of the shots of one env.

    Attributes:
        problem: The env at its target.
        recorded: Directory of recorded training and validation shots; None if the env samples its shots.
        simulated: Training shots are sampled although there are recorded ones.
    """

    problem: Problem
    recorded: Path | None = None
    simulated: bool = False

    def __post_init__(self) -> None:
        if self.problem.env.recorded is not None and self.recorded is None:
            hint = "a run or `autoqec run-round` provides them"
            raise UsageError("the recorded shots of the env are missing", location=self.problem.env.name, hint=hint)

    def validation(self, n: int) -> sampling.Shots:
        """Return the first `n` validation shots; recorded ones may be fewer."""
        if self.recorded is not None:
            return self._open("validation").first(n)
        return sampling.sample(self.problem, n, sampling.band_seed(self.problem.env.seed_policy.val, VAL_KEY))

    def training(self, n: int, seed: int) -> sampling.Shots:
        """Return `n` training shots of a seed; recorded ones are drawn with replacement."""
        if self.recorded is not None and not self.simulated:
            return self._open("train").draw(n, seed)
        return sampling.sample(self._simulation, n, seed)

    @cached_property
    def _simulation(self) -> Problem:
        """Return the problem to sample: of an env of recorded shots, with the model of the first training phase."""
        if self.problem.env.recorded is None:
            return self.problem
        return self.problem.with_other_dem(self.problem.dem)

    def _open(self, part: str) -> VisibleShots:
        assert self.recorded is not None
        return VisibleShots.open(self.recorded, part, self.problem.n_detectors, self.problem.n_observables)


def provide_shots(recorded: RecordedShots, env: EnvSpec, round_dir: Path, progress: Progress = SILENT) -> None:
    """Copy recorded training and validation shots beside a round directory, and note where all shots are.

    Only the copies are visible to branch code; the verifier alone opens the recorded files again. Copies of an earlier
    round beside it are used again. `progress` reports how much is copied.

    Raises:
        UsageError: The copies that exist are of another recording or of another division.
    """
    assert env.recorded is not None
    location = recorded_location(round_dir)
    if location.exists():
        if not has_copies(env, round_dir) or location.read_text(encoding="utf-8") != f"{recorded.directory}\n":
            hint = "choose a round directory in another directory"
            raise UsageError("belongs to other recorded shots", location=str(visible_shots(round_dir)), hint=hint)
        return
    write_visible(recorded, env.recorded, visible_shots(round_dir), progress)
    atomic.write_text(location, f"{recorded.directory}\n")


def has_copies(env: EnvSpec, round_dir: Path) -> bool:
    """Return whether all training and validation shots of an env of recorded shots are beside a round directory."""
    assert env.recorded is not None
    source, split = Problem.from_env(env).source, Split.of(env.recorded)
    sizes = source.num_detectors, source.num_observables
    lengths = []
    with suppress(UsageError):
        lengths = [len(VisibleShots.open(visible_shots(round_dir), part, *sizes)) for part in PARTS]
    return lengths == [span[1] - span[0] for span in (split.train, split.validation)]


def restore_copies(recorded: RecordedShots, env: EnvSpec, round_dir: Path, progress: Progress = SILENT) -> None:
    """Provide the recorded shots of a run again, from the directory in which its files are now."""
    assert env.recorded is not None
    if not has_copies(env, round_dir):  # a job of the run may read copies that exist
        write_visible(recorded, env.recorded, visible_shots(round_dir), progress)
    atomic.write_text(recorded_location(round_dir), f"{recorded.directory}\n")
