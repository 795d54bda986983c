"""Paths of a run under runs/ and .worktrees/, names of branches and refs. Only the layout modules here spell paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from autoqec.contracts import names
from autoqec.store.recorded_layout import recorded_location
from autoqec.store.round_layout import RoundLayout

RUN_ID = re.compile(rf"(?:{names.RUN_ID})\Z")  # `$` would also match before a trailing newline
BRANCH = re.compile(r"^exp/(?P<run_id>[^/]+)/(?P<rest>(?P<round>\d{2,})-[a-z0-9-]+)$")
EDITABLE_MODULES = "autoqec/decoders/modules"
EDITABLE_CONFIG = f"{EDITABLE_MODULES}/predecoder.yaml"


@dataclass(frozen=True)
class RunLayout:
    """Files of one run; `repo_root` is the workspace repository's top level."""

    repo_root: Path
    run_id: str

    @property
    def root(self) -> Path:
        """The run's directory."""
        return runs_dir(self.repo_root) / self.run_id

    @property
    def history(self) -> Path:
        """`history.jsonl`."""
        return self.root / "history.jsonl"

    @property
    def attempts(self) -> Path:
        """`attempts.jsonl`."""
        return self.root / "attempts.jsonl"

    @property
    def attempts_head(self) -> Path:
        """`attempts.head`: hash of a line of attempts.jsonl that registered a test."""
        return self.root / "attempts.head"

    @property
    def log(self) -> Path:
        """`log.md`."""
        return self.root / "log.md"

    @property
    def log_file(self) -> Path:
        """The operational log: what happened when. `log` is the narrative of the results."""
        return self.root / "logs" / "autoqec.log"

    @property
    def pareto(self) -> Path:
        """`pareto.json`."""
        return self.root / "pareto.json"

    @property
    def preview(self) -> Path:
        """`pareto_preview.json`."""
        return self.root / "pareto_preview.json"

    @property
    def candidates(self) -> Path:
        """`candidate_pareto.json`."""
        return self.root / "candidate_pareto.json"

    @property
    def fork_graph(self) -> Path:
        """`fork_graph.json`."""
        return self.root / "fork_graph.json"

    @property
    def run_info(self) -> Path:
        """`run.json`."""
        return self.root / "run.json"

    @property
    def env(self) -> Path:
        """`env.yaml`."""
        return self.root / "env.yaml"

    @property
    def secret(self) -> Path:
        """`secret`."""
        return self.root / "secret"

    @property
    def secret_hex(self) -> Path:
        """The secret of a closed run, as hex."""
        return self.root / "secret.hex"

    @property
    def live(self) -> Path:
        """Live status of the run's process; deleted when it ends."""
        return self.root / "live.json"

    @property
    def stop_request(self) -> Path:
        """Request of `autoqec stop`; deleted when the user starts the run again."""
        return self.root / "stop_request.json"

    @property
    def detached(self) -> Path:
        """State of a detached run."""
        return self.root / "detached.json"

    @property
    def detached_logs(self) -> Path:
        """Output of the jobs in which a detached run executes."""
        return self.root / "detached"

    @property
    def cassette(self) -> Path:
        """`cassette.jsonl`."""
        return self.root / "cassette.jsonl"

    @property
    def ledger(self) -> Path:
        """`ledger.jsonl`."""
        return self.root / "ledger.jsonl"

    @property
    def notebook(self) -> Path:
        """`notebook.jsonl`."""
        return self.root / "notebook.jsonl"

    @property
    def trials(self) -> Path:
        """`trials.jsonl`."""
        return self.root / "trials.jsonl"

    @property
    def salvage(self) -> Path:
        """`salvage`."""
        return self.root / "salvage"

    @property
    def shots(self) -> Path:
        """The verifier's shots from an archive; empty in the repository in which the run was made."""
        return self.root / "shots"

    @property
    def removed_files(self) -> Path:
        """Files that `autoqec gc` removed, with their hashes."""
        return self.root / "removed.jsonl"

    @property
    def html(self) -> Path:
        """`report.html`."""
        return self.root / "report.html"

    @property
    def plots(self) -> Path:
        """`plots`."""
        return self.root / "plots"

    @property
    def exports(self) -> Path:
        """`exports`."""
        return self.root / "exports"

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
