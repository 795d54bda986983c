"""Recorded shots in a run: what rounds train on and are validated on, and where the verifier finds the files.

Rounds read copies of the training and validation shots; the verifier alone opens the recorded files again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, ignore
from autoqec.errors import UsageError
from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.extensions.recorded.env import open_checked, preflight
from autoqec.extensions.recorded.shots import Progress, RecordedShots
from autoqec.extensions.recorded.split import PARTS, Split, VisibleShots, write_visible
from autoqec.qec import sampling
from autoqec.qec.problem import Problem
from autoqec.store import atomic, files
from autoqec.store.layout import RunLayout, recorded_location, visible_shots

MOVED = "restore the files of the recording, or give their directory with --recorded"


@dataclass(frozen=True)
class RecordedShotSource:
    """Recorded training and validation shots of an env.

    Attributes:
        problem: The env at its target.
        directory: Directory of the copies.
        simulated: Training shots are sampled nevertheless.
    """

    problem: Problem
    directory: Path
    simulated: bool = False

    @classmethod
    def open(cls, problem: Problem, directory: Path | None, simulated: bool) -> RecordedShotSource:
        """Return the source of the copies in a directory; UsageError without one."""
        if directory is None:
            hint = "a run or `autoqec run-round` provides them"
            raise UsageError("the recorded shots of the env are missing", location=problem.env.name, hint=hint)
        return cls(problem, directory, simulated)

    def validation(self, n: int) -> sampling.Shots:
        """Return the first `n` validation shots, or all if they are fewer."""
        return self._open("validation").first(n)

    def training(self, n: int, seed: int) -> sampling.Shots:
        """Return `n` training shots of a seed, drawn with replacement."""
        return sampling.sample(self._simulation, n, seed) if self.simulated else self._open("train").draw(n, seed)

    @cached_property
    def _simulation(self) -> Problem:
        """Return the problem whose shots are those of the model of the first training phase."""
        return self.problem.with_other_dem(self.problem.dem)

    def _open(self, part: str) -> VisibleShots:
        return VisibleShots.open(self.directory, part, self.problem.n_detectors, self.problem.n_observables)


@dataclass(frozen=True)
class RecordedRunShots:
    """Checked recorded shots of an env, which a run can be provided with."""

    env: EnvSpec
    recorded: RecordedShots

    @property
    def directory(self) -> Path:
        """Directory of the files."""
        return self.recorded.directory

    def provide(self, round_dir: Path, on_event: OnEvent = ignore, *, moved: bool = False) -> None:
        """Copy training and validation shots beside a round directory, and note where all shots are.

        Copies of an earlier round beside it are used again.

        Args:
            round_dir: The round directory.
            on_event: Receives how much is copied.
            moved: Whether the run may know another directory of the files.

        Raises:
            UsageError: The copies that exist are of another recording or of another division.
        """
        location, copies = recorded_location(round_dir), visible_shots(round_dir)
        complete = has_copies(self.env, round_dir)
        if location.exists() and not moved:
            if not complete or location.read_text(encoding="utf-8") != f"{self.directory}\n":
                hint = "choose a round directory in another directory"
                raise UsageError("belongs to other recorded shots", location=str(copies), hint=hint)
            return
        if not (moved and complete):  # a job of the run may read copies that exist
            write_visible(self.recorded, RecordedShotsCode.of(self.env), copies, Progress(on_event))
        atomic.write_text(location, f"{self.directory}\n")


def has_copies(env: EnvSpec, round_dir: Path) -> bool:
    """Return whether all training and validation shots of an env of recorded shots are beside a round directory."""
    source, split = Problem.from_env(env).source, Split.of(RecordedShotsCode.of(env))
    sizes = source.num_detectors, source.num_observables
    lengths = []
    with suppress(UsageError):
        lengths = [len(VisibleShots.open(visible_shots(round_dir), part, *sizes)) for part in PARTS]
    return lengths == [span[1] - span[0] for span in (split.train, split.validation)]


def check_start(env: EnvSpec, env_dir: Path, on_event: OnEvent = ignore) -> RecordedRunShots:
    """Check the files that the manifest of an env in `env_dir` names; see `env.preflight`."""
    code = RecordedShotsCode.of(env)
    directory = ((env_dir / code.path).parent / code.files.directory).resolve()
    return RecordedRunShots(env, preflight(env, directory, Progress(on_event)))


def check_moved(env: EnvSpec, directory: Path, on_event: OnEvent = ignore) -> RecordedRunShots:
    """Compare the files in a directory with the hashes in the env of a run.

    Raises:
        UsageError: The directory or a file is missing, or a file differs.
    """
    if not directory.is_dir():
        raise UsageError("the recorded shots are not here: not a directory", location=str(directory), hint=MOVED)
    return RecordedRunShots(env, open_checked(env, directory.resolve(), MOVED, Progress(on_event)))


def check_resumed(env: EnvSpec, layout: RunLayout) -> None:
    """Check that a run which is resumed has its copies, and knows an existing directory of the files.

    Raises:
        UsageError: One of them is missing.
    """
    first = layout.round(1).dir
    known, hint = recorded_location(first), f"autoqec run --resume {layout.run_id} --recorded DIR"
    if not known.is_file() or not has_copies(env, first):
        message = "the run has no recorded shots here: it was restored from an archive, or its files were removed"
        raise UsageError(message, location=str(layout.root), hint=hint)
    place = Path(files.read_text(known).strip())
    if not place.is_dir():
        raise UsageError("the recorded shots are not here: not a directory", location=str(place), hint=hint)
