"""The state of a run, read with a fixed number of git processes however many branches and rows it has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from autoqec.contracts.base import Contract
from autoqec.contracts.job import JobOrder
from autoqec.contracts.provenance import Manifest, Pointer
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import AutoqecError
from autoqec.orchestrator import worktree
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.plan import BranchTip, RoundFiles, RunInspection
from autoqec.store import atomic, files, jsonl
from autoqec.store.layout import RoundLayout, RunLayout, branch_round, pointer_on_branch, quarantine_branch_of
from autoqec.store.run_state import Attempt
from autoqec.system.git import Repo
from autoqec.system.git.parsing import parse_commit

ContractT = TypeVar("ContractT", bound=Contract)


def inspect_run(repo: Repo, layout: RunLayout, memory: RunMemory | None = None) -> RunInspection:
    """Call while holding the run: what is found unfinished is then a dead owner's. memory: the run's, where one is
    read already."""
    memory = memory or RunMemory(layout.root)
    info, rows = memory.history.info(), memory.history.rows()
    attempts, closed = dict(memory.attempt_state.attempts), memory.state.rounds
    standing = [*closed.values()]
    open_attempts = [attempt for attempt in attempts.values() if attempt.id not in closed]
    planned = [attempt.planned.branch for attempt in attempts.values() if attempt.planned]
    shas = {
        ref.removeprefix("refs/heads/"): sha
        for prefix in (layout.branch_prefix, quarantine_branch_of(layout.branch_prefix))
        for ref, sha in repo.refs(f"refs/heads/{prefix}").items()
    }
    pins = {ref.removeprefix(layout.pin_prefix): sha for ref, sha in repo.refs(layout.pin_prefix).items()}
    recorded = {one.row.branch for one in standing}
    unrecorded = [branch for branch in shas if branch not in recorded]
    commits = {one.row.commit_sha for one in standing if one.row.commit_sha}
    names = [*shas.values(), *commits, *(f"{shas[branch]}:{_pointer_path(branch)}" for branch in unrecorded)]
    found = dict(zip(names, repo.objects(names), strict=True)) if names else {}
    tips = {branch: _branch_tip(sha, found[sha]) for branch, sha in shas.items()}
    pointers = {
        branch: _parse_pointer(found[f"{shas[branch]}:{_pointer_path(branch)}"], branch) for branch in unrecorded
    }
    return RunInspection(
        layout=layout,
        info=info,
        attempts=attempts,
        rows=tuple(rows),
        branches=tips,
        pins=pins,
        pointers={branch: pointer for branch, pointer in pointers.items() if pointer is not None},
        rounds={attempt.round: read_round_files(layout.round(attempt.round)) for attempt in open_attempts},
        jobs=frozenset(attempt.id for attempt in open_attempts if _has_job(layout, attempt)),
        missing=frozenset(sha for sha in commits if found[sha] is None),
        worktrees=worktree.leftovers(repo, layout, planned),
        leftovers=tuple(_leftover_files(layout, open_attempts)),
        torn=tuple(path for path in (layout.attempts, layout.history) if jsonl.is_torn(path)),
        views_stale=bool(memory.stale_views()),
    )


def _pointer_path(branch: str) -> str:
    name = "exp/" + branch.removeprefix("quarantine/") if branch.startswith("quarantine/") else branch
    return pointer_on_branch(branch_round(name) or 0)


def read_pointer_at(repo: Repo, sha: str, number: int) -> Pointer | str | None:
    """The pointer of round `number` in a commit's tree; a sentence where it is none."""
    return _parse_pointer(repo.objects([f"{sha}:{pointer_on_branch(number)}"])[0], sha)


def _branch_tip(sha: str, git_object: tuple[str, bytes] | None) -> BranchTip:
    if git_object is None:
        return BranchTip(sha)
    commit = parse_commit(sha, git_object[1])
    return BranchTip(sha, commit.parents, commit.trailers.get(worktree.TRAILER))


def _parse_pointer(git_object: tuple[str, bytes] | None, branch: str) -> Pointer | str | None:
    if git_object is None:
        return None
    try:
        return Pointer.read(json.loads(git_object[1]), location=branch)
    except (ValueError, AutoqecError) as error:
        return str(error)


def read_round_files(layout: RoundLayout) -> RoundFiles:
    """What of a round's directory is whole."""
    manifest = _load_contract(layout.manifest, Manifest)
    return RoundFiles(
        metrics=_load_contract(layout.metrics, RoundMetrics),
        report=_load_contract(layout.report_json, VerifyReport),
        config=read_config(layout.config),
        sandbox=manifest.sandbox.get("tier") if manifest else None,
    )


def read_job_order(layout: RoundLayout, attempt_id: str) -> JobOrder | None:
    """The order by which a cluster's job measures this attempt's round; None where there is none that is whole."""
    order = _load_contract(layout.job, JobOrder)
    return order if order is not None and order.config.round_attempt_id == attempt_id else None


def _has_job(layout: RunLayout, attempt: Attempt) -> bool:
    if attempt.planned is None or not layout.worktree(attempt.planned.branch).is_dir():
        return False
    return read_job_order(layout.round(attempt.round), attempt.id) is not None


def _load_contract(path: Path, kind: type[ContractT]) -> ContractT | None:
    try:
        return kind.read(json.loads(path.read_bytes()), location=str(path))
    except (OSError, ValueError, AutoqecError):
        return None


def read_config(path: Path) -> dict[str, Any] | None:
    """A config file's value; None where it holds none."""
    try:
        value = files.load_yaml(files.read_text(path), location=str(path))
    except AutoqecError:
        return None
    return value if isinstance(value, dict) else None


def _leftover_files(layout: RunLayout, open_attempts: Iterable[Attempt]) -> list[Path]:
    """Half-written files, the Runner's scratch directory, orders for jobs: what a dead process can have left."""
    rounds = [layout.round(attempt.round) for attempt in open_attempts]
    directories = [layout.root, layout.salvage, *(one.dir for one in rounds)]
    found = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    leftover = [path for path in found if path.name.endswith(".tmp")]
    leftover += [one.job for one in rounds if one.job.is_file()]
    return [*leftover, *(path for path in _partial_files(layout) if path not in leftover)]


def _partial_files(layout: RunLayout) -> list[Path]:
    """What killed writes left anywhere in the run: a recorded round may be judged, and so written to, again.

    What was salvaged stays as it was found.
    """
    found = []
    for where, folders, names in os.walk(layout.root):
        # A .tmp is gone as a whole, or a job's.
        folders[:] = sorted(
            name for name in folders if not name.endswith(".tmp") and Path(where, name) != layout.salvage
        )
        found += [Path(where, name) for name in sorted(names) if atomic.is_temporary(name)]
    return found
