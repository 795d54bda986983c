"""Paths of runs, rounds and packaged models, names of branches and refs. Only this module spells paths of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import overload

from autoqec.contracts import names
from autoqec.installation import PACKAGE_DIR


class Below:
    """A path below the directory of a layout.

    Args:
        parts: Names of directories, and of the file.
        of: Attribute of the layout that holds the directory.
    """

    def __init__(self, *parts: str, of: str = "dir") -> None:
        self._parts, self._directory = parts, of

    @overload
    def __get__(self, layout: None, owner: type) -> Below: ...

    @overload
    def __get__(self, layout: object, owner: type) -> Path: ...

    def __get__(self, layout: object | None, owner: type) -> Below | Path:
        """Return the path of a layout; of the class, the attribute itself."""
        if layout is None:
            return self
        directory: Path = getattr(layout, self._directory)
        return directory.joinpath(*self._parts)


VERIFICATION = "verification"


@dataclass(frozen=True)
class RoundLayout:
    """Files of one round directory."""

    dir: Path
    round: int

    config = Below("config.yaml")
    train_log = Below("train.log")
    checkpoint = Below("checkpoint.pt")
    metrics = Below("metrics.json")
    manifest = Below("artifact_manifest.json")
    manifest_error = Below("manifest_error.txt")
    train_dir = Below("train")
    progress = Below("train", "progress.csv")
    # The order for a cluster's job: written before the job is submitted, deleted when it is cancelled.
    job = Below("job.json")
    job_claim = Below("job_claim")  # the id of the one job that works on the order
    job_dir = Below("job")  # script and logs of the cluster's job
    # Order, seeds, result and logs of a verification in a cluster's job; removed when its result was read.
    verification_dir = Below(VERIFICATION)
    transcript = Below("transcript.jsonl")  # the turns of the language models
    trial_dir = Below("trial")  # files of a trial while it runs
    report_md = Below("verification_report.md")
    report_json = Below("verification_report.json")

    @property
    def pointer(self) -> Path:
        """The round's copy of its pointer."""
        return self.dir / pointer_name(self.round)


def pointer_name(number: int) -> str:
    """Return the file name of a round's pointer."""
    return f"round_{number}_pointer.json"


def pointer_on_branch(number: int) -> str:
    """Return the path of the pointer in the tree of the branch."""
    return f"round_{number}/{pointer_name(number)}"


def path_in_run(number: int, path: str | None) -> str | None:
    """Return the path of a file of a round relative to the run directory, `round_<N>/NAME`, as stored in rows."""
    return None if path is None else f"round_{number}/{PurePath(path).name}"


RUN_ID = re.compile(rf"(?:{names.RUN_ID})\Z")  # `$` would also match before a trailing newline
BRANCH = re.compile(r"^exp/(?P<run_id>[^/]+)/(?P<rest>(?P<round>\d{2,})-[a-z0-9-]+)$")
EDITABLE_MODULES = "autoqec/decoders/modules"
EDITABLE_CONFIG = f"{EDITABLE_MODULES}/predecoder.yaml"
_in_run = partial(Below, of="root")


@dataclass(frozen=True)
class RunLayout:
    """Files of one run; `repo_root` is the workspace repository's top level."""

    repo_root: Path
    run_id: str

    history = _in_run("history.jsonl")
    attempts = _in_run("attempts.jsonl")
    attempts_head = _in_run("attempts.head")  # hash of a line of attempts.jsonl that registered a test
    log = _in_run("log.md")
    log_file = _in_run("logs", "autoqec.log")  # operational: what happened when; `log` is the narrative of the results
    pareto = _in_run("pareto.json")
    preview = _in_run("pareto_preview.json")
    candidates = _in_run("candidate_pareto.json")
    fork_graph = _in_run("fork_graph.json")
    run_info = _in_run("run.json")
    env = _in_run("env.yaml")
    secret = _in_run("secret")
    secret_hex = _in_run("secret.hex")  # the secret of a closed run, as hex
    live = _in_run("live.json")  # live status of the run's process; deleted when it ends
    stop_request = _in_run("stop_request.json")  # request of `autoqec stop`; deleted when the user starts the run again
    detached = _in_run("detached.json")  # state of a detached run
    detached_logs = _in_run("detached")  # output of the jobs in which a detached run executes
    cassette = _in_run("cassette.jsonl")
    ledger = _in_run("ledger.jsonl")
    notebook = _in_run("notebook.jsonl")
    trials = _in_run("trials.jsonl")
    salvage = _in_run("salvage")
    shots = _in_run("shots")  # the verifier's shots from an archive; empty in the repository in which the run was made
    removed_files = _in_run("removed.jsonl")  # files that `autoqec gc` removed, with their hashes
    html = _in_run("report.html")
    plots = _in_run("plots")
    exports = _in_run("exports")

    @property
    def root(self) -> Path:
        """The run's directory."""
        return runs_dir(self.repo_root) / self.run_id

    def stored(self, path: str | None) -> Path | None:
        """Return the file that a row names, if it exists in this run.

        Args:
            path: Relative to the run directory.

        Returns:
            The absolute path of an existing regular file, else None.
        """
        if path is None:
            return None
        found = self.root / path
        return (
            found if ".." not in PurePath(path).parts and not PurePath(path).is_absolute() and found.is_file() else None
        )

    def round(self, number: int) -> RoundLayout:
        """Return the layout of a round's directory."""
        return RoundLayout(self.root / f"round_{number}", number)

    def worktree(self, branch: str) -> Path:
        """Return the directory in which a round's branch is checked out."""
        return self.repo_root / ".worktrees" / branch.replace("/", "-")

    def branch(self, number: int, slug: str) -> str:
        """Return the name of a round's branch."""
        return f"exp/{self.run_id}/{number:02d}-{slug}"

    @property
    def branch_prefix(self) -> str:
        """Start of the names of the run's branches."""
        return f"exp/{self.run_id}/"

    @property
    def pin_prefix(self) -> str:
        """Start of the full names of the run's pins."""
        return f"refs/autoqec/pin/{self.run_id}/"

    def pin(self, attempt_id: str) -> str:
        """Return the ref that keeps a recorded round's commit reachable."""
        return f"{self.pin_prefix}{attempt_id}"


def partial_run_id(run_id: str) -> str:
    """Return the name of a run directory during its creation, which no command accepts as a run id."""
    return f".{run_id}.partial"


def runs_dir(repo_root: Path) -> Path:
    """Return the directory of all runs of a repository; it may be a symbolic link."""
    return repo_root / "runs"


def hidden_from_branch_code(round_dir: Path) -> tuple[Path, ...]:
    """Return the directories that branch code must not see: all runs with their secrets, worktrees and git directory.

    `runs` and `.worktrees` may be symbolic links to another disk, so their targets are included. So are recorded shots,
    whose test blocks are sealed.
    """
    workspace = round_dir.parent.parent.parent
    location = recorded_location(round_dir)
    recorded = (Path(location.read_text(encoding="utf-8").strip()),) if location.is_file() else ()
    named = (round_dir.parent, runs_dir(workspace), workspace / ".worktrees", workspace / ".git", *recorded)
    return tuple(dict.fromkeys((*named, *(path.resolve() for path in named))))


def shared_with_jobs(round_dir: Path) -> tuple[Path, ...]:
    """Return the directories that a job of a round reads and writes: the workspace, and the targets of its links."""
    workspace = round_dir.absolute().parents[2]
    named = (workspace, runs_dir(workspace), workspace / ".worktrees")
    return tuple(dict.fromkeys(place for path in named for place in (path, path.resolve()) if place.exists()))


def quarantine_branch_of(branch: str) -> str:
    """Return the quarantine name of a round's branch: exp/<run>/<rest> -> quarantine/<run>/<rest>."""
    return "quarantine/" + branch.removeprefix("exp/")


def round_branch_of(branch: str) -> str:
    """Return the original name of a quarantined branch; any other name is returned unchanged."""
    return "exp/" + branch.removeprefix("quarantine/") if branch.startswith("quarantine/") else branch


def branch_round(branch: str) -> int | None:
    """Return the round number in a branch's name; None if it is not a round's branch."""
    match = BRANCH.match(branch)
    return int(match["round"]) if match else None


def visible_shots(round_dir: Path) -> Path:
    """Return the directory of recorded training and validation shots, which the rounds of a run read."""
    return round_dir.parent / "recorded"


def recorded_location(round_dir: Path) -> Path:
    """Return the file that names the directory of the recorded shots of a run; rounds cannot read it."""
    return round_dir.parent / "recorded_directory.txt"


@dataclass(frozen=True)
class BoardLayout:
    """Files of a decoder board: a directory of its own, or the one in the package."""

    dir: Path

    circuits = Below("circuits.jsonl")  # the pinned circuits
    decoders = Below("decoders.jsonl")  # decoders that the user added
    results = Below("results.jsonl")  # the measurements
    jobs = Below("jobs")  # orders of SLURM jobs that may still be at work

    def circuit(self, sha256: str) -> Path:
        """Return the file of an added circuit."""
        return self.dir / "circuits" / f"{sha256}.stim"

    def job(self, name: str) -> BoardJobLayout:
        """Return the files of an order."""
        return BoardJobLayout(self.jobs / name)


@dataclass(frozen=True)
class BoardJobLayout:
    """Files of the SLURM jobs of an order: `jobs/<name>/` of a board."""

    dir: Path

    order = Below("order.json")  # what the jobs measure

    def result(self, index: int) -> Path:
        """Return the file in which a job says how it ended."""
        return self.dir / f"result-{index}.json"


PACKAGED_BOARD = BoardLayout(PACKAGE_DIR / "data" / "board")


@dataclass(frozen=True)
class ModelLayout:
    """Files of a verified model in the package."""

    dir: Path

    info = Below("model.json")
    checkpoint = Below("checkpoint.pt")  # tensors and plain values
    env = Below("env.yaml")
    report = Below("verification_report.json")
    archive = Below("run.tar.gz")  # the archive of the closed run, with its secret, compressed


PACKAGED_MODELS = PACKAGE_DIR / "data" / "models"
