"""Resolves env names to files, and run ids and directories to layouts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.errors import UsageError
from autoqec.installation import PACKAGE_DIR
from autoqec.store import layout
from autoqec.system.git import Repo

if TYPE_CHECKING:
    from autoqec.contracts.code_source import CodeSource

_PREFIXES = ("refs/heads/exp/", "refs/heads/quarantine/", "refs/autoqec/pin/")
BUILTIN = PACKAGE_DIR / "envs" / "builtin"


def builtin_envs() -> dict[str, Path]:
    """Return the env files of the package by name."""
    return {path.stem: path for path in sorted(BUILTIN.glob("*.yaml"))}


def generated_envs() -> dict[str, tuple[str, type[CodeSource]]]:
    """Return description and code of the builtin envs that extensions generate when they are first used, by name."""
    from autoqec.contracts.code_source import extension_codes

    return {code.example[0]: (code.example[1], code) for code in extension_codes() if code.example is not None}


def env_file(name: str) -> Path:
    """Return the env file of a builtin env name or a path; UsageError if there is none.

    The files of `generated_envs` are in the directory of the runs.
    """
    known = builtin_envs()
    if name in known:
        return known[name]
    generated = generated_envs()
    if name in generated:
        return generated[name][1].write_example(layout.runs_dir(workspace_root()) / name)
    path = Path(name)
    if path.exists():
        return path
    message = f"is neither an env file nor a builtin env ({', '.join([*known, *generated])})"
    raise UsageError(message, location=name, hint="autoqec envs")


def workspace_root() -> Path:
    """Return the root of the git repository of the current directory; UsageError if there is none."""
    return Path(Repo.discover(Path.cwd()).root)


def run_layout(run: str, *, root: Path | None = None) -> layout.RunLayout:
    """Return the run with an id, or at a path, in the repository at `root`; UsageError if there is none."""
    root = root or workspace_root()
    run_id = Path(run).name
    candidate = layout.RunLayout(root, run_id)
    if not layout.RUN_ID.match(run_id) or not candidate.run_info.is_file():
        _explain_deleted_run(root, run_id)
        raise UsageError("run not found in this repository", location=f"run {run}", hint="autoqec show")
    return candidate


def _explain_deleted_run(root: Path, run_id: str) -> None:
    """Raise UsageError if git still has the branches and pins of a run whose directory is gone."""
    try:
        repo = Repo.discover(root)
    except UsageError:
        return
    for deleted in find_deleted_runs(repo):
        if deleted.run_id == run_id:
            hint = f"autoqec gc {run_id} removes what is left"
            raise UsageError(deleted.message, location=f"run {run_id}", hint=hint)


@dataclass(frozen=True)
class DeletedRun:
    """A run of which only the git refs remain, for example after `git clean -fdX`; `refs` maps names to commits."""

    run_id: str
    refs: dict[str, str]

    @property
    def message(self) -> str:
        """Description for the user."""
        branches = sum(ref.startswith("refs/heads/") for ref in self.refs)
        left = f"{branches} branches and {len(self.refs) - branches} pins remain in git"
        return f"the directory runs/{self.run_id} with history and secret was deleted (git clean?); {left}"


def find_deleted_runs(repo: Repo) -> list[DeletedRun]:
    """Return the runs of which only branches and pins remain, oldest first."""
    refs: dict[str, dict[str, str]] = {}
    for prefix in _PREFIXES:
        for ref, sha in repo.refs(prefix).items():
            run_id = ref.removeprefix(prefix).split("/")[0]
            if layout.RUN_ID.match(run_id) and not layout.RunLayout(repo.root, run_id).root.exists():
                refs.setdefault(run_id, {})[ref] = sha
    return [DeletedRun(run_id, refs[run_id]) for run_id in sorted(refs)]


def find_run(run: str) -> layout.RunLayout:
    """Return a run by the path of its directory in any repository, or by its id in this one; UsageError if none."""
    directory = Path(run)
    if directory.name != run and directory.is_dir():
        directory = Path(os.path.abspath(directory))
        candidate = layout.RunLayout(directory.parent.parent, directory.name)
        if candidate.root == directory and layout.RUN_ID.match(directory.name) and candidate.run_info.is_file():
            return candidate
        hint = "choose a directory …/runs/RUN that contains run.json"
        raise UsageError("is not a run directory", location=run, hint=hint)
    return run_layout(run)


def run_ids(root: Path) -> list[str]:
    """Return the ids of all runs of a repository, oldest first."""
    runs = layout.runs_dir(root)
    if not runs.is_dir():
        return []
    return sorted(entry.name for entry in runs.iterdir() if layout.RUN_ID.match(entry.name))


def parse_round_dir(round_dir: Path) -> tuple[layout.RunLayout, int]:
    """Return run and round number of a round directory in any repository; UsageError for other directories."""
    directory = Path(os.path.abspath(round_dir))
    number = directory.name.removeprefix("round_")
    root = directory.parent.parent.parent
    hint = "choose runs/RUN/round_N; `autoqec show` lists the runs"
    if not number.isdecimal() or not directory.is_dir():
        raise UsageError("is not a round directory", location=str(round_dir), hint=hint)
    candidate = run_layout(directory.parent.name, root=root)
    if candidate.round(int(number)).dir != directory:
        raise UsageError("is not a round directory", location=str(round_dir), hint=hint)
    return candidate, int(number)
