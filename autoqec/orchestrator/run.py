"""A run: opened new or again, validated before anything is written, held until it is closed."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, RunResumed, RunStarted
from autoqec.contracts.history import RunInfo
from autoqec.contracts.messages import AnalystResponse, CoderResponse, IdeatorResponse
from autoqec.contracts.pins import Pins, validate_pins
from autoqec.contracts.profiles import PROFILES, ProfileName
from autoqec.contracts.settings import RunSettings
from autoqec.errors import ContractError, ManualInterventionRequired, UsageError
from autoqec.ideators import analyst, coder
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.publish_secret import is_closed
from autoqec.orchestrator.recovery.apply import recover
from autoqec.store import atomic, files, run_log
from autoqec.store.layout import EDITABLE_CONFIG, EDITABLE_MODULES, RUN_ID, RunLayout, pointer_on_branch, runs_dir
from autoqec.system import machine, run_lock
from autoqec.system.git import Repo, preflight

SECRET_BYTES = 32
# Ideators without a language model, by name; what they need is imported when one is asked for.
BUILTIN_IDEATORS = {
    "tpe": "autoqec.ideators.tpe",
    "random": "autoqec.ideators.random",
    "evolve": "autoqec.ideators.evolve",
    "policy": "autoqec.continual.environments.policy_ideator",
}
View = dict[str, Any]


@dataclass(frozen=True)
class Roles:
    """Who speaks. A role that answers None leaves the round to its twin without a language model.

    open_surface: the Coder sees the surface's files and may edit them, beside the config.
    """

    ideator: Callable[[View], IdeatorResponse | None]
    coder: Callable[[View], CoderResponse | None] = coder.code
    analyst: Callable[[View], AnalystResponse | None] = analyst.analyse
    open_surface: bool = False


def search(name: str) -> Callable[[View], IdeatorResponse]:
    """An ideator without a language model, by name. UsageError lists the known ones."""
    if name not in BUILTIN_IDEATORS:
        raise UsageError(
            f"unknown ideator {name!r}", location="--ideator", hint=f"one of {', '.join(BUILTIN_IDEATORS)}"
        )
    propose: Callable[[View], IdeatorResponse] = importlib.import_module(BUILTIN_IDEATORS[name]).propose
    return propose


@dataclass
class Run:
    """One run, held by this process; a context manager. Everything but the roles and `threads` stands on disk.

    baseline_config: the config that the baseline commit stands for. inputs: what a net of this env can read.
    notes: what a person should be told of the start. threads: of each Runner child; results depend on it in their
    last digits.
    """

    repo: Repo
    layout: RunLayout
    info: RunInfo
    env: EnvSpec
    env_text: str
    baseline_config: dict[str, Any]
    inputs: str
    roles: Roles
    threads: int = 1
    notes: list[str] = field(default_factory=list)
    held: ExitStack = field(default_factory=ExitStack)
    memory: RunMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = RunMemory(self.layout.root)

    @property
    def secret(self) -> bytes:
        """The judge's; read where it is needed and nowhere kept."""
        return self.layout.secret.read_bytes()

    def round_seed(self, number: int) -> int:
        """The Runner's seed of a round: a function of the run's seed and the round's number."""
        text = f"autoqec/round-seed/{self.info.seed}/{number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31

    def close(self) -> None:
        self.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held.__exit__(kind, error, trace)


@dataclass(frozen=True)
class StartCheck:
    """What a run would begin with; nothing is written yet. notes: what a person should be told."""

    repo: Repo
    env: EnvSpec
    env_text: str
    baseline: str
    baseline_config: dict[str, Any]
    inputs: str
    secret: bytes
    notes: tuple[str, ...]


def check_start(
    env_path: Path | str, repo: Path | str, profile: str, *, secret_file: Path | str | None = None
) -> StartCheck:
    """Everything that can be found wrong before a run exists. Raises UsageError; writes nothing."""
    env, env_text = files.load_env(env_path)
    if profile not in PROFILES:
        raise UsageError(f"unknown profile {profile!r}", location="--profile", hint=f"one of {', '.join(PROFILES)}")
    workspace = Repo.discover(repo)
    baseline = workspace.head_sha()
    baseline_config = _baseline_config_at(workspace, baseline)
    _require_clean(workspace)
    _require_writable(workspace.root)
    check_workspace(workspace)
    secret = _load_secret(secret_file)
    inputs = _require_decodable(env)
    message = f"HEAD is detached: the baseline is commit {baseline[:12]}, and no branch of yours is touched"
    linked = preflight.linked_worktree_note(workspace, workspace.linked_worktree, baseline)
    notes = tuple(note for note in (linked, message if workspace.head_ref() is None else None) if note is not None)
    return StartCheck(workspace, env, env_text, baseline, baseline_config, inputs, secret, notes)


def start_run(
    env_path: Path | str,
    repo: Path | str,
    profile: ProfileName = "dev",
    seed: int = 1,
    ideator: str = "tpe",
    *,
    secret_file: Path | str | None = None,
    roles: Roles | None = None,
    threads: int = 1,
    pins: Pins | None = None,
    command_line: tuple[str, ...] = (),
    settings: RunSettings | None = None,
) -> Run:
    """A new run in the repository that holds `repo`. Raises UsageError for any fault, with nothing written.

    ideator: its name on record; without `roles` one of SEARCHES. secret_file: the judge's secret, for tests and
    replays; without it 32 random bytes. pins: knobs that every proposal holds. settings: what a resume inherits.
    The caller closes the run.
    """
    held = validate_pins(pins or {})
    start = check_start(env_path, repo, profile, secret_file=secret_file)
    roles = roles or Roles(search(ideator))
    workspace, env, baseline, secret = start.repo, start.env, start.baseline, start.secret
    layout = _create_run_directory(workspace.root)
    info = RunInfo(
        run_id=layout.run_id,
        env_name=env.name,
        env_yaml_sha256=sha256_bytes(start.env_text.encode()),
        baseline_sha=baseline,
        baseline_ref=workspace.head_ref(),
        profile=profile,
        seed=seed,
        ideator=ideator,
        pins=held,
        code_sha256=machine.code_sha256(),
        package_sha256=machine.package_sha256(),
        secret_sha256=sha256_bytes(secret),
        versions=machine.versions(),
        command_line=command_line,
        settings=settings,
    )
    run = Run(workspace, layout, info, env, start.env_text, start.baseline_config, start.inputs, roles, threads)
    run.notes.extend(start.notes)
    try:
        _acquire(run)
        atomic.write_text(layout.env, start.env_text)
        atomic.write_bytes(layout.secret, secret, mode=0o600)
        run.memory.history.write_info(info)
        run.memory.rebuild_views()
    except BaseException:
        run.__exit__(*sys.exc_info())
        shutil.rmtree(layout.root, ignore_errors=True)
        raise
    failpoint("run_created")
    run_log.record(RunStarted(run_id=info.run_id, env=info.env_name, profile=profile, seed=seed))
    return run


def resume_run(
    run_id: str,
    repo: Path | str,
    *,
    roles: Roles | None = None,
    threads: int = 1,
    on_event: OnEvent | None = None,
) -> Run:
    """An earlier run, brought in line first. Raises UsageError where there is none or another holds it,
    ManualInterventionRequired
    where the trusted code is another by now, or where recovery needs a person."""
    workspace = Repo.discover(repo)
    layout = RunLayout(workspace.root, run_id)
    if not RUN_ID.match(run_id) or not layout.root.is_dir():
        raise UsageError("there is no such run here", location=f"run {run_id}", hint="autoqec show")
    info = RunMemory(layout.root).history.info()
    env_text = files.read_text(layout.env, what="the run's env", hint=f"restore {layout.env}")
    env = files.parse_env(env_text, location=str(layout.env))
    _require_unchanged(layout, info, env_text)
    check_workspace(workspace)
    note = code_change(info)
    if workspace.rev_parse(info.baseline_sha) is None:
        raise ManualInterventionRequired(
            f"git no longer has the baseline commit {info.baseline_sha}", location=run_id, hint="git fetch"
        )
    roles = roles or Roles(search(info.ideator))
    baseline_config = _baseline_config_at(workspace, info.baseline_sha)
    run = Run(workspace, layout, info, env, env_text, baseline_config, _require_decodable(env), roles, threads)
    _acquire(run)
    if note is not None:
        run.notes.append(note)
    run_log.record(RunResumed(run_id=run_id, notes=tuple(run.notes)))
    try:
        recover(layout, workspace, run_log.logged(on_event), memory=run.memory)
    except BaseException:
        run.__exit__(*sys.exc_info())
        raise
    return run


def _acquire(run: Run) -> None:
    held = run.held.enter_context(run_lock.lock_run(run.layout.root))
    run.held.enter_context(run_log.attach(run.layout))
    if held.warning:
        run.notes.append(held.warning)
    if held.killed_pids:
        run.notes.append(f"ended {len(held.killed_pids)} processes that an earlier start had left")


def check_workspace(repo: Repo) -> None:
    """Check that git can create, check out and commit the branches of rounds here; UsageError if it cannot."""
    preflight.check_repository(repo, (EDITABLE_CONFIG, pointer_on_branch(1)))


def _baseline_config_at(repo: Repo, commit: str) -> dict[str, Any]:
    """The config that a commit's search surface stands for."""
    hint = "`autoqec init DIR` makes a repository that has one"
    data = repo.show_file(commit, EDITABLE_CONFIG)
    if data is None:
        raise UsageError(f"commit {commit[:12]} has no search surface: {EDITABLE_CONFIG} is missing", hint=hint)
    config = files.load_yaml(data.decode("utf-8", "replace"), location=EDITABLE_CONFIG)
    try:
        return parse_dsl(config, location=EDITABLE_CONFIG).config()
    except ContractError as error:
        raise UsageError(
            error.message, location=EDITABLE_CONFIG, hint=f"edit {EDITABLE_CONFIG} and commit it"
        ) from error


def _require_clean(repo: Repo) -> None:
    dirty = repo.dirty_paths(EDITABLE_MODULES)
    if dirty:
        what = f"the search surface has changes that are not committed: {', '.join(dirty[:3])}"
        raise UsageError(
            what, location=EDITABLE_MODULES, hint=f"git add {EDITABLE_MODULES} && git commit, or git stash"
        )


def _require_writable(root: Path) -> None:
    runs_root = runs_dir(root)
    nearest = runs_root if runs_root.exists() or runs_root.is_symlink() else root
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(
            "is no directory one may write to", location=str(nearest), hint=f"ls -ld {nearest}; chmod u+rwx"
        )


def _load_secret(path: Path | str | None) -> bytes:
    if path is None:
        return os.urandom(SECRET_BYTES)
    secret = files.read_bytes(path, what="secret file", hint="name another --secret-file")
    if len(secret) < SECRET_BYTES // 2:
        raise UsageError(
            f"a secret needs at least {SECRET_BYTES // 2} bytes",
            location=str(path),
            hint=f"head -c {SECRET_BYTES} /dev/urandom > {path}",
        )
    return secret


def _require_decodable(env: EnvSpec) -> str:
    """Build the problem once: a circuit that cannot be decoded is found before the run exists.

    Returns what a net may read: `all` where no detector lies outside the backend's own sector.
    """
    from autoqec.qec import external_decoders
    from autoqec.qec.problem import Problem

    external_decoders.require_installed(env)
    problems = [Problem.from_env(env, p) for p in env.points]
    return "other_sector" if len(problems[0].graph.out_of_sector) else "all"


def _create_run_directory(root: Path) -> RunLayout:
    """Its own, by an exclusive mkdir: a second start in the same second gets `-2`."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        layout = RunLayout(root, stamp if number == 1 else f"{stamp}-{number}")
        with suppress(FileExistsError):
            atomic.make_dir(layout.root, exclusive=True)
            return layout
        number += 1


def _require_unchanged(layout: RunLayout, info: RunInfo, env_text: str) -> None:
    """What a run froze at its start must still be so."""
    if is_closed(layout):
        raise UsageError("the run is closed: its secret is published", location=info.run_id, hint="start a new run")
    for what, path, was, now in (
        ("env", layout.env, info.env_yaml_sha256, sha256_bytes(env_text.encode())),
        ("secret", layout.secret, info.secret_sha256, sha256_bytes(layout.secret.read_bytes())),
    ):
        if was != now:
            message = f"the run's {what} is no longer what it began with: SHA-256 was {was}, is {now}"
            raise ManualInterventionRequired(message, location=str(path), hint=f"restore {path}")


def code_change(info: RunInfo) -> str | None:
    """Compare the installed code with the code that the run began with.

    Returns:
        A note if code changed that cannot change a result, or if an earlier version started the run: its one hash over
        the whole package changes with every version, so it cannot tell what changed. None if nothing changed.

    Raises:
        ManualInterventionRequired: if code changed that can change a result, so that old and new rounds would not be
        comparable.
    """
    if info.package_sha256 is None:
        return "an earlier version of AutoQEC started this run; its new rounds are measured by the installed version"
    if info.code_sha256 != machine.code_sha256():
        raise ManualInterventionRequired(
            f"code that can change results ({', '.join(machine.RESULT_PACKAGES)}) differs from the code that the run "
            "began with, so its old and new rounds would not be comparable",
            location=info.run_id,
            hint="check out or install the version that started it, or start a new run",
        )
    if info.package_sha256 != machine.package_sha256():
        return "code that cannot change results differs from the code that the run began with"
    return None
