"""Handing a round to the judge: charged first, so that an attempt counts whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.history import Charged, RunInfo
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RoundMetrics, parent_branches
from autoqec.contracts.timing import utc_now
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, InputError
from autoqec.orchestrator import round_recorder, worktree
from autoqec.orchestrator.failpoint import reach
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.publish_secret import is_closed, published_secret
from autoqec.orchestrator.recovery.inspect import read_config, round_files
from autoqec.store import files, run_log
from autoqec.store.history import History
from autoqec.store.layout import SURFACE, RunLayout
from autoqec.store.run_state import RoundState, fold
from autoqec.system import run_lock
from autoqec.system.git import GitFailed, Repo
from autoqec.system.scratch import scratch

if TYPE_CHECKING:
    from autoqec.verification.verifier import Replay, VerifyRequest

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Candidate:
    """A measured round as the judge is to see it. surface: its checked-out search surface."""

    number: int
    attempt_id: str
    branch: str | None
    commit_sha: str | None
    metrics: RoundMetrics
    surface: Path


def judge(memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes, on_event: OnEvent) -> VerifyReport:
    """Charge the attempt and have it judged; call while holding the run. What `verifier.verify` raises goes up."""
    from autoqec.verification import verifier

    with _requested(memory, info, candidate, secret) as request:
        artifact = verifier.artifact_sha256(request)
        memory.history.append_attempt(
            Charged(
                round_attempt_id=candidate.attempt_id,
                round=candidate.number,
                artifact_sha256=artifact,
                attempt_index=request.attempt_index,
                at=utc_now(),
            )
        )
        reach("charged")
        on_event("judging", {"round": candidate.number, "phase": "judging"})
        report = verifier.verify(replace(request, expected_artifact=artifact), on_event=on_event)
        reach("judged")
        return report


def judge_again(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent) -> VerifyReport:
    """What `autoqec verify` does: a judged round is replayed and compared; one that never was is judged now, and a
    follow-up row says so.

    Raises InputError where there is nothing to judge, the run is held, or is closed (then only a replay goes, with the
    published secret), ContractError where the replay disagrees.
    """
    from autoqec.verification import verifier

    with _asked(layout, repo, number) as (info, one, candidate, secret):
        if one.row.verify_verdict is not None:
            # A report that was lost is written anew; only to compare with one that stands needs no hold on the run.
            lost = not layout.round(number).report_json.exists()
            memory = RunMemory(layout.root)
            with (
                run_lock.hold(layout.root) if lost else nullcontext(),
                _requested(memory, info, candidate, secret) as request,
            ):
                return verifier.verify(_as_first_judged(memory, one, request), on_event=on_event)
        with run_lock.hold(layout.root), run_log.attach(layout):
            memory = RunMemory(layout.root)
            # What was asked before the run was held may be over by now: no round gets a second verdict, and none is
            # drawn from a secret that has been published.
            if is_closed(layout) or _measured(memory.history, number).row.verify_verdict is not None:
                what = "another process judged the round, or closed the run, meanwhile"
                raise InputError(what, where=f"round {number}", mend=f"autoqec verify {layout.round(number).dir}")
            report = judge(memory, info, candidate, secret, run_log.logged(on_event))
            memory.append_round(round_recorder.judged_row(one.row, one.attempt_id, report))
            memory.rebuild_views()
            return report


def replay(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent) -> Replay:
    """What `autoqec verify --replay` does: the judgement that stands, made again; nothing is written.

    Raises InputError where no report stands, ContractError where report, commit, env or artifact do not
    belong together.
    """
    from autoqec.verification import report, verifier

    place = layout.round(number)
    standing = report.read(place)
    if standing is None:
        raise InputError("no judgement stands to be replayed", where=str(place.dir), mend=f"autoqec verify {place.dir}")
    with (
        _asked(layout, repo, number) as (info, _, candidate, secret),
        _requested(RunMemory(layout.root), info, candidate, secret) as request,
    ):
        return verifier.replay(standing, request, on_event=on_event)


@contextmanager
def _asked(layout: RunLayout, repo: Repo, number: int) -> Iterator[tuple[RunInfo, RoundState, Candidate, bytes]]:
    """A recorded round as the judge is to see it, its surface checked out for as long as the context lasts."""
    history = History(layout)
    info, one = history.info(), _measured(history, number)
    closed = is_closed(layout)
    if closed and one.row.verify_verdict is None:
        raise InputError("the run is closed: its secret is published", where=info.run_id, mend="start a new run")
    secret = published_secret(layout) if closed else layout.secret.read_bytes()
    if sha256_bytes(secret) != info.secret_sha256:
        what = f"the run is committed to secret {info.secret_sha256}, this is {sha256_bytes(secret)}"
        raise InputError(what, where=str(layout.secret), mend=f"restore {layout.secret}")
    metrics = round_files(layout.round(number)).metrics
    if metrics is None:
        raise InputError("cannot be read", where=str(layout.round(number).metrics), mend=f"restore round {number}")
    with scratch("surface") as directory:
        surface = directory / "modules"
        repo.extract(str(one.row.commit_sha), SURFACE, surface)
        yield info, one, Candidate(number, one.attempt_id, one.row.branch, one.row.commit_sha, metrics, surface), secret


def _measured(history: History, number: int) -> RoundState:
    for one in history.state().rounds.values():
        if one.row.round == number and one.row.status == "ok" and one.row.commit_sha:
            return one
    what = f"round {number} left nothing that could be judged"
    raise InputError(what, where=f"run {history.layout.run_id}", mend=f"autoqec show {history.layout.run_id}")


@contextmanager
def _requested(memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes) -> Iterator[VerifyRequest]:
    """The order for the judge; a composition's with its parents, checked out for as long as the context lasts."""
    request = _request(memory, info, candidate, secret)
    attempt = memory.attempt_state.attempts.get(candidate.attempt_id)
    branches = parent_branches(attempt.planned.fork_from) if attempt and attempt.planned else ()
    if len(branches) < 2:
        yield request
        return
    with scratch("parents") as directory:
        try:
            parents = tuple(_parent(memory, info, branch, secret, directory) for branch in branches)
            request = replace(request, parents=parents)
        except (ContractError, InputError, GitFailed) as error:  # costs the comparison, not the judgement
            request = replace(request, uncompared=error.what)
        yield request


def _parent(memory: RunMemory, info: RunInfo, branch: str, secret: bytes, directory: Path) -> VerifyRequest:
    """A parent as it was judged: its own files, its branch's surface, the artifact that its report names."""
    layout = memory.layout
    one = next((one for one in memory.state.rounds.values() if one.row.branch == branch), None)
    if one is None or one.row.verify_verdict != "VERIFIED":
        raise InputError(f"parent {branch} is not VERIFIED")
    number = one.row.round
    place = round_files(layout.round(number))
    if place.metrics is None or place.report is None:
        raise InputError(f"metrics or report of parent round {number} cannot be read")
    surface = directory / str(number)
    Repo.discover(layout.repo_root).extract(str(one.row.commit_sha), SURFACE, surface)
    parent = Candidate(number, one.attempt_id, branch, one.row.commit_sha, place.metrics, surface)
    return replace(_request(memory, info, parent, secret), expected_artifact=place.report.artifact_sha256)


def _request(memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes) -> VerifyRequest:
    """The order for the judge, from what the disk holds."""
    from autoqec.verification import verifier

    layout, place = memory.layout, memory.layout.round(candidate.number)
    env_text = files.read_text(layout.env, what="the run's env", mend=f"restore {layout.env}")
    if (now := sha256_bytes(env_text.encode())) != info.env_yaml_sha256:
        what = f"the run began on env {info.env_yaml_sha256}, this is {now}"
        raise InputError(what, where=str(layout.env), mend=f"restore {layout.env}")
    share = files.parse_env(env_text, where=str(layout.env)).protocol.shots_share
    charged = memory.attempt_state.charged
    return verifier.VerifyRequest(
        env_text=env_text,
        round=place,
        checkpoint=place.checkpoint,
        dsl_config=parse_dsl(read_config(place.config), where=str(place.config)).config(),
        secret=secret,
        profile=PROFILES[info.profile].scaled(share),
        run_id=info.run_id,
        config_only=worktree.is_config_only(candidate.surface),
        modules_dir=candidate.surface,
        round_attempt_id=candidate.attempt_id,
        branch=candidate.branch,
        commit_sha=candidate.commit_sha,
        claimed=candidate.metrics,
        attempt_index=len(charged) + 1,
        discoveries_before=len(memory.state.verified),
        judged_before=_before(charged, candidate.attempt_id, judged=place.report_json.exists()),
        shots=layout.shots,
    )


def _as_first_judged(memory: RunMemory, one: RoundState, request: VerifyRequest) -> VerifyRequest:
    """The order as it was when the round got its verdict: a report that was lost since is made again at the same level,
    whatever the run has judged and found by now."""
    charged = memory.attempt_state.charged
    places = [line.attempt_index for line in charged if line.round_attempt_id == one.attempt_id]
    rows = memory.history.rows()
    mine = (row.verify_verdict and one.attempt_id in (row.round_attempt_id, row.refers_to_attempt) for row in rows)
    before = fold(rows[: next(index for index, judged in enumerate(mine) if judged)])
    return replace(
        request,
        attempt_index=places[-1] if places else request.attempt_index,
        discoveries_before=len(before.verified),
        judged_before=_before(charged, one.attempt_id, judged=True),
    )


def _before(charged: Sequence[Charged], attempt_id: str, *, judged: bool) -> dict[str, int]:
    """Artifact -> round of its first draw, in the order of charges: for a judged attempt, up to its own last one.

    An attempt that was cut off while it was judged told nobody anything: its own charge is no earlier draw.
    """
    own = [index for index, line in enumerate(charged) if line.round_attempt_id == attempt_id]
    until = own[-1] if own and judged else len(charged)
    earlier = [line for line in charged[:until] if line.round_attempt_id != attempt_id]
    return {line.artifact_sha256: line.round for line in reversed(earlier)}
