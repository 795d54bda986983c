"""Paths of a run under runs/ and .worktrees/, names of branches and refs. Only the layout modules here spell paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath

from autoqec.contracts import names
from autoqec.store.below import Below
from autoqec.store.recorded_layout import recorded_location
from autoqec.store.round_layout import RoundLayout

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
            path: Relative to the run directory; absolute in rows of version 1. Of an absolute path only the last two
                components are used, since the repository may have been moved.

        Returns:
            The absolute path of an existing regular file, else None.
        """
        if path is None:
            return None
        named = PurePath(path)
        found = self.root.joinpath(*(named.parts[-2:] if named.is_absolute() else named.parts))
        return found if ".." not in named.parts and found.is_file() else None

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


def recorded_example(workspace: Path) -> Path:
    """Return the directory of the generated shots of the builtin env `recorded_example`."""
    return runs_dir(workspace) / "recorded_example"


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
