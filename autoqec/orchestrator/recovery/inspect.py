"""Reads the state of a run for recovery; the number of git processes does not depend on the number of branches."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import AutoqecError, ManualInterventionRequired
from autoqec.orchestrator import worktree
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.state import BranchTip, OpenRound, RunInspection
from autoqec.store import atomic, jsonl
from autoqec.store.layout import (
    RoundLayout,
    RunLayout,
    branch_round,
    pointer_on_branch,
    quarantine_branch_of,
    round_branch_of,
)
from autoqec.store.round_files import load_contract, load_round
from autoqec.store.run_state import Attempt
from autoqec.system.git import Repo
from autoqec.system.git.parsing import parse_commit

if TYPE_CHECKING:
    from autoqec.contracts.job import JobOrder


def inspect_run(repo: Repo, layout: RunLayout, memory: RunMemory | None = None) -> RunInspection:
    """Read everything that recovery decides on.

    Args:
        repo: The repository that holds the run.
        layout: The run. The caller holds its lock, so that unfinished work was left by a dead process.
        memory: The run's memory, if it was read already.

    Returns:
        The state of the run as found on disk.

    Raises:
        ManualInterventionRequired: A file of the run is damaged, or the run directory was renamed or copied.
    """
    memory = memory or RunMemory(layout.root)
    history, info = memory.history, memory.history.info()
    require_own_directory(layout, info)
    attempts, rounds = memory.attempt_state, memory.state.rounds
    open_attempts = [attempt for attempt in attempts.attempts.values() if attempt.id not in rounds]
    planned = [attempt.planned.branch for attempt in attempts.attempts.values() if attempt.planned]
    shas, pins = _read_refs(repo, layout)
    rows = {attempt_id: round_state.row for attempt_id, round_state in rounds.items()}
    reports = {key: layout.round(row.round).report_json for key, row in rows.items() if row.verify_verdict is not None}
    return RunInspection(
        layout=layout,
        info=info,
        attempts=dict(attempts.attempts),
        registered_tests=attempts.registered_tests,
        rows=tuple(history.rows()),
        pins=pins,
        rounds={attempt.round: _read_open_round(layout.round(attempt.round)) for attempt in open_attempts},
        reports={key: load_contract(path, VerifyReport) for key, path in reports.items()},
        jobs=frozenset(attempt.id for attempt in open_attempts if _has_job(layout, attempt)),
        checked_out=worktree.branches_in_use(repo, layout, planned),
        broken_refs=_broken_refs(repo, layout, {*shas, *pins}),
        worktrees=worktree.leftovers(repo, layout, planned),
        leftovers=tuple(_leftover_files(layout, open_attempts)),
        torn=tuple(path for path in (layout.attempts, layout.history) if jsonl.is_torn(path)),
        views_stale=bool(memory.stale_views()),
        row_without_its_attempts=history.row_without_its_attempts(),
        registered_test_lost=history.lost_registered_test(),
        **_read_objects(repo, info.baseline_sha, rows, shas, pins),
    )


def _read_objects(
    repo: Repo, baseline_sha: str, rows: Mapping[str, HistoryRow], shas: Mapping[str, str], pins: Mapping[str, str]
) -> dict[str, Any]:
    """Return the part of an inspection that is in git's objects, which are read by one call."""
    recorded = {row.branch for row in rows.values()}
    on_tips = {branch: f"{sha}:{_pointer_path(branch)}" for branch, sha in shas.items() if branch not in recorded}
    on_pins = {
        key: f"{pins[key]}:{pointer_on_branch(row.round)}"
        for key, row in rows.items()
        if row.verify_verdict is not None and key in pins
    }
    commits = {baseline_sha, *shas.values(), *(row.commit_sha for row in rows.values() if row.commit_sha)}
    names = [*commits, *on_tips.values(), *on_pins.values()]
    found = dict(zip(names, repo.objects(names), strict=True))

    def pointers(places: Mapping[str, str]) -> dict[str, Pointer | str]:
        parsed = {key: _parse_pointer(found[name], name) for key, name in places.items()}
        return {key: pointer for key, pointer in parsed.items() if pointer is not None}

    return {
        "branches": {branch: _branch_tip(sha, found[sha]) for branch, sha in shas.items()},
        "pointers": pointers(on_tips),
        "committed_pointers": pointers(on_pins),
        "missing": frozenset(sha for sha in commits if found[sha] is None),
    }


def _read_refs(repo: Repo, layout: RunLayout) -> tuple[dict[str, str], dict[str, str]]:
    """Return the commits of branches by name, and the pinned commits by attempt id."""
    prefixes = (layout.branch_prefix, quarantine_branch_of(layout.branch_prefix))
    refs = repo.refs(*(f"refs/heads/{prefix}" for prefix in prefixes), layout.pin_prefix)
    pins = {ref.removeprefix(layout.pin_prefix): sha for ref, sha in refs.items() if ref.startswith(layout.pin_prefix)}
    heads = "refs/heads/"
    return {ref.removeprefix(heads): sha for ref, sha in refs.items() if ref.startswith(heads)}, pins


def moved_branches(repo: Repo, layout: RunLayout) -> list[str]:
    """Return the branches of finished rounds that are at no recorded commit, because the user moved or amended them.

    Call it after recovery, which pins every recorded commit. A round that is still measured has a worktree.
    """
    shas, pins = _read_refs(repo, layout)
    recorded = set(pins.values())
    return [branch for branch, sha in shas.items() if sha not in recorded and not layout.worktree(branch).is_dir()]


def require_own_directory(layout: RunLayout, info: RunInfo) -> None:
    """Raise ManualInterventionRequired if the run directory was renamed or copied: its branches have other names."""
    if info.run_id != layout.run_id:
        own = layout.root.with_name(info.run_id)
        hint = (
            f"a copy cannot be resumed, delete it: rm -r {layout.root}" if own.exists() else f"mv {layout.root} {own}"
        )
        message = f"this directory contains run {info.run_id}, so branches and pins of {layout.run_id} are not its own"
        raise ManualInterventionRequired(message, location=str(layout.root), hint=hint)


def _broken_refs(repo: Repo, layout: RunLayout, known: set[str]) -> dict[str, Path]:
    """Return the files of the run's branches and pins that git does not list as refs because they are damaged."""
    prefixes = (f"refs/heads/{layout.branch_prefix}", f"refs/heads/quarantine/{layout.run_id}/", layout.pin_prefix)
    broken = {}
    for prefix in prefixes:
        for where, _, names in os.walk(repo.common / prefix):
            folder = Path(where).relative_to(repo.common).as_posix()
            for name in names:
                ref = f"{folder}/{name}"
                short = ref.removeprefix("refs/heads/").removeprefix(layout.pin_prefix)
                if short not in known and not name.endswith(".lock") and Path(where, name).is_file():
                    broken[ref] = Path(where, name)
    return dict(sorted(broken.items()))


def _pointer_path(branch: str) -> str:
    return pointer_on_branch(branch_round(round_branch_of(branch)) or 0)


def read_pointer_at(repo: Repo, sha: str, number: int) -> Pointer | str | None:
    """Return the pointer of round `number` in a commit's tree: None if there is no such file, a message if invalid."""
    return _parse_pointer(repo.objects([f"{sha}:{pointer_on_branch(number)}"])[0], sha)


def _branch_tip(sha: str, git_object: tuple[str, bytes] | None) -> BranchTip:
    if git_object is None:
        return BranchTip(sha)
    commit = parse_commit(sha, git_object[1])
    return BranchTip(sha, commit.parents, commit.trailers.get(worktree.TRAILER))


def _parse_pointer(git_object: tuple[str, bytes] | None, where: str) -> Pointer | str | None:
    if git_object is None:
        return None
    try:
        return Pointer.read(json.loads(git_object[1]), location=where)
    except (ValueError, AutoqecError) as error:
        return str(error)


def _read_open_round(layout: RoundLayout) -> OpenRound:
    """Return the files of a round without a row, and the response of the rule-based Analyst to it."""
    found = OpenRound(**vars(load_round(layout)))
    if found.metrics is None:
        return found
    from autoqec.contracts.views import AnalystView
    from autoqec.ideators import analyst

    return replace(found, nomination=analyst.analyse(AnalystView(metrics_path=layout.metrics)))


def read_job_order(layout: RoundLayout, attempt_id: str) -> JobOrder | None:
    """Return the job order of this attempt's round; None if there is no complete one."""
    from autoqec.contracts.job import JobOrder

    order = load_contract(layout.job, JobOrder)
    return order if order is not None and order.config.round_attempt_id == attempt_id else None


def _has_job(layout: RunLayout, attempt: Attempt) -> bool:
    if attempt.planned is None or not layout.worktree(attempt.planned.branch).is_dir():
        return False
    return read_job_order(layout.round(attempt.round), attempt.id) is not None


def _leftover_files(layout: RunLayout, open_attempts: Iterable[Attempt]) -> list[Path]:
    """Return what a dead process can have left: partial files, the Runner's scratch directory and job orders."""
    rounds = [layout.round(attempt.round) for attempt in open_attempts]
    directories = [layout.root, layout.salvage, *(round_layout.dir for round_layout in rounds)]
    paths = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    leftover = [path for path in paths if path.name.endswith(".tmp")]
    leftover += [round_layout.job for round_layout in rounds if round_layout.job.is_file()]
    return [*leftover, *(path for path in _partial_files(layout) if path not in leftover)]


def _partial_files(layout: RunLayout) -> list[Path]:
    """Return temporary files of killed writes, also in recorded rounds, which a later verification writes to.

    Salvaged files are not included.
    """
    found, folders, salvage = [], [str(layout.root)], str(layout.salvage)
    for folder in folders:  # grows; os.walk would cost three times as much
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                # A .tmp directory is removed as a whole, or is in use by a job.
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.endswith(".tmp") and entry.path != salvage:
                        folders.append(entry.path)
                elif atomic.is_temporary(entry.name):
                    found.append(Path(entry.path))
    return sorted(found)
