"""Everything a page about a run needs, read from its directory and its branches; bounded, whatever a run has become."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.verdict import PairedEffect, VerifyReport
from autoqec.errors import AutoqecError, UsageError
from autoqec.reporting import run_view
from autoqec.reporting.loss import curve
from autoqec.reporting.run_view import RunView
from autoqec.reporting.text import paragraphs
from autoqec.store.files import dump_config, parse_env
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.store.run_state import Attempt, RoundState
from autoqec.system import run_lock
from autoqec.system.git import Repo
from autoqec.system.process import procfs

DETAILS, LISTED = 60, 400  # rounds told in full, and rounds listed, over all runs of a page
DIFF_CHARS = 300_000  # of all diffs of a page

BASELINE = "baseline"


@dataclass(frozen=True)
class RoundEntry:
    """One attempt as its last row leaves it. parents: anchors of the rounds it forks from; () for the baseline."""

    row: HistoryRow
    key: str
    anchor: str
    on_front: bool
    gone: bool
    parents: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The branch's own words; where there is no branch, the outcome."""
        return (self.row.branch or self.row.status).rsplit("/", 1)[-1]

    @property
    def outcome(self) -> str:
        """The judge's word, else why there is none."""
        if self.row.verify_verdict:
            return self.row.verify_verdict
        if self.row.status != "ok":
            return self.row.status
        return "nominated" if self.row.verdict == "candidate" else "not nominated"


@dataclass(frozen=True)
class Detail:
    """What is shown of a round beyond its row. diff_note: why there is no diff, or less than all of it."""

    report: VerifyReport | None
    curve: tuple[tuple[int, float], ...]
    diff: str
    diff_note: str


@dataclass(frozen=True)
class Pending:
    """An attempt without a row: under way, or lost until a reconcile."""

    round: int
    reached: str
    hypothesis: str


@dataclass(frozen=True)
class RunData:
    """One run. `listed`: the rounds that are shown, oldest first; `details` by key: those told in full."""

    view: RunView
    rounds: tuple[RoundEntry, ...]
    listed: tuple[RoundEntry, ...]
    pending: tuple[Pending, ...]
    living: bool
    env: EnvSpec | None
    env_text: str
    spent: dict[str, Any] | None
    details: dict[str, Detail] = field(default_factory=dict)

    @property
    def info(self) -> RunInfo:
        return self.view.info

    @property
    def layout(self) -> RunLayout:
        return self.view.layout

    @property
    def id(self) -> str:
        return self.view.layout.run_id

    @cached_property
    def front(self) -> tuple[RoundEntry, ...]:
        """The verified front, best first."""
        by_key = {one.key: one for one in self.rounds}
        return tuple(by_key[entry.round_attempt_id] for entry in self.view.front)

    @property
    def best(self) -> RoundEntry | None:
        return self.front[0] if self.front else None

    @cached_property
    def told(self) -> set[str]:
        """Anchors of the rounds that are told in full: what a link may lead to."""
        return {one.anchor for one in self.rounds if one.key in self.details}

    def report(self, one: RoundEntry) -> VerifyReport | None:
        """The judge's report of a round that is told in full."""
        detail = self.details.get(one.key)
        return detail.report if detail else None


def load(layouts: Sequence[RunLayout]) -> list[RunData]:
    """The runs of one page. Raises UsageError where there is no such run, ManualInterventionRequired where its truth
    is damaged.
    """
    return [_load(layout, len(layouts)) for layout in layouts]


def _load(layout: RunLayout, sharing: int) -> RunData:
    view = run_view.load(layout)
    rounds = rounds_of(view)
    best = view.front[0].round_attempt_id if view.front else None
    ranked = sorted(rounds, key=lambda one: (one.key == best, *_importance(one)), reverse=True)
    keep = {one.key for one in ranked[: LISTED // sharing]}
    env = env_of(layout)
    data = RunData(
        view=view,
        rounds=rounds,
        listed=tuple(one for one in rounds if one.key in keep),
        pending=pending(layout, {one.key for one in rounds}),
        living=living(layout),
        env=env,
        env_text=dump_config(env.dump()) if env else "",
        spent=spent(layout),
    )
    repo, chars = _repo(layout), DIFF_CHARS // sharing
    told = ranked[: max(1, DETAILS // sharing)]
    for one in told:
        data.details[one.key] = _detail(layout, one, repo, chars // max(1, len(told)))
    return data


def _importance(one: RoundEntry) -> tuple[bool, bool, bool, int]:
    """The front first, then what is verified, then what was judged, then the latest."""
    return one.on_front, one.row.verify_verdict == "VERIFIED", one.row.verify_verdict is not None, one.row.round


def rounds_of(view: RunView) -> tuple[RoundEntry, ...]:
    """One per attempt, in the order of their first rows."""
    state = view.state
    front = {entry.round_attempt_id for entry in state.front}
    anchors = _anchors(view.layout.run_id, state.rounds.values())
    return tuple(
        RoundEntry(
            row=found.row,
            key=key,
            anchor=anchors[key],
            on_front=key in front,
            gone=found.gone,
            parents=tuple(anchors[parent] for parent in found.parents if parent in anchors),
        )
        for key, found in state.rounds.items()
    )


def _anchors(run_id: str, rounds: Iterable[RoundState]) -> dict[str, str]:
    """A place on the page for each round; a number that stands twice gets a suffix."""
    seen: dict[int, int] = {}
    anchors = {}
    for found in rounds:
        number = found.row.round
        seen[number] = seen.get(number, 0) + 1
        again = f"-{seen[number]}" if seen[number] > 1 else ""
        anchors[found.attempt_id] = f"run-{run_id}-round-{number}{again}"
    return anchors


def pending(layout: RunLayout, closed: Collection[str]) -> tuple[Pending, ...]:
    """Attempts that are not among the `closed` ones, in the order they began."""
    attempts = History(layout).attempt_state().attempts.values()
    return tuple(
        Pending(attempt.round, _reached(attempt), attempt.planned.ideator.hypothesis if attempt.planned else "")
        for attempt in attempts
        if attempt.id not in closed
    )


def _reached(attempt: Attempt) -> str:
    if attempt.charged:
        return "before the judge"
    if attempt.nominated:
        return "nominated"
    return "planned; it is trained and measured" if attempt.planned else "an idea is being sought"


def validation(row: HistoryRow) -> PairedEffect | None:
    """The Runner's own comparison with its interval; None where the counts are not on record, or contradict."""
    from autoqec.reporting.rows import effect

    try:
        return effect(row)
    except ValueError:
        return None


def living(layout: RunLayout) -> bool:
    """Whether the process that owns the run is alive on this machine."""
    said = run_lock.read(layout.root)
    pid = said.get("pid")
    same_boot = bool(procfs.boot_id()) and said.get("boot_id") == procfs.boot_id()
    return same_boot and isinstance(pid, int) and procfs.start_time(pid) == said.get("start_time")


def env_of(layout: RunLayout) -> EnvSpec | None:
    """The run's frozen env; None where its copy cannot be read."""
    try:
        return parse_env(layout.env.read_text(encoding="utf-8"), location=str(layout.env))
    except (OSError, ValueError, AutoqecError):
        return None


def spent(layout: RunLayout) -> dict[str, Any] | None:
    """What language models took; None where none was asked."""
    from autoqec.llm.ledger import Ledger

    if not layout.ledger.exists():
        return None
    try:
        return Ledger(layout.ledger).totals.to_json()
    except (AutoqecError, KeyError, TypeError, ValueError):
        return None


def _repo(layout: RunLayout) -> Repo | None:
    try:
        return Repo.discover(layout.repo_root)
    except UsageError:
        return None


def _detail(layout: RunLayout, one: RoundEntry, repo: Repo | None, chars: int) -> Detail:
    files = layout.round(one.row.round)
    judged = one.row.verify_verdict is not None or files.report_json.exists()
    diff, note = _diff(repo, one.row, chars)
    return Detail(run_view.report(files) if judged else None, curve(files.train_log), diff, note)


def _diff(repo: Repo | None, row: HistoryRow, chars: int) -> tuple[str, str]:
    """What the round changed in the search surface, against its (first) parent."""
    if row.commit_sha is None:
        return "", "This round left no commit."
    if repo is None:
        return "", "The repository of this run is not here."
    try:
        text = paragraphs(repo.diff_text(f"{row.commit_sha}^", row.commit_sha, [EDITABLE_MODULES]), 50 * chars)
    except AutoqecError:
        return "", "The commit of this round is not in this repository."
    if not text:
        return "", "No change to the search surface: the parent's code and configuration, run again."
    lines, size = text.split("\n"), 0
    for number, line in enumerate(lines):
        size += len(line) + 1 + 4 * sum(line.count(char) for char in "<>&'\"")  # as escaped in the page
        if size > chars:
            where = f"git show {row.commit_sha[:12]}"
            return "\n".join(lines[:number]), f"The first {number} of {len(lines)} lines; all of them: {where}"
    return text, ""
