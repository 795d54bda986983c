"""Checks before a run starts or is resumed; they write nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.history import RunInfo
from autoqec.contracts.pins import Pins
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.errors import ContractError, ManualInterventionRequired, UsageError
from autoqec.orchestrator.recovery.inspect import require_own_directory
from autoqec.orchestrator.secret import new_secret, read_secret, require_only_copy
from autoqec.store import files
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_CONFIG, EDITABLE_MODULES, RUN_ID, RunLayout, pointer_on_branch, runs_dir
from autoqec.system import machine
from autoqec.system.git import Repo, preflight

if TYPE_CHECKING:
    from autoqec.runner.shot_source import RunShots


@dataclass(frozen=True)
class StartCheck:
    """The checked inputs of a new run.

    Attributes:
        env_text: The env file with its circuit files included, as the run stores it.
        baseline: The commit that rounds fork from.
        baseline_config: The config of that commit's editable modules.
        network_options: What a predecoder of this env can have.
        notes: Messages for the user.
        recorded: The shots that the env's code brings; None if they are sampled.
    """

    repo: Repo
    env: EnvSpec
    env_text: str
    baseline: str
    baseline_config: dict[str, Any]
    network_options: NetworkOptions
    secret: bytes
    notes: tuple[str, ...]
    recorded: RunShots | None = None


def check_start(
    env_path: Path | str,
    repo: Path | str,
    profile: str,
    *,
    pins: Pins | None = None,
    secret_file: Path | str | None = None,
    trained_here: bool = True,
    on_event: OnEvent = ignore,
) -> StartCheck:
    """Check everything that a new run needs; write nothing.

    Args:
        env_path: The env file.
        repo: A directory of the repository.
        profile: The name of a profile.
        pins: DSL values that every proposal must have.
        secret_file: See `secret.new_secret`.
        trained_here: See `find_network_options`.
        on_event: Receives the progress of reading recorded shots.

    Raises:
        UsageError: A check failed; names which.
    """
    env, env_text = files.load_env(env_path)
    chosen = profile_of(profile)
    workspace = Repo.discover(repo)
    baseline = workspace.head_sha()
    baseline_config = baseline_config_at(workspace, baseline)
    check_workspace(workspace)  # first, since a missing filter program also breaks `git status`
    _require_clean(workspace)
    runs_root = runs_dir(workspace.root)
    _require_writable(runs_root if runs_root.exists() or runs_root.is_symlink() else workspace.root)
    secret = new_secret(secret_file)
    network_options = find_network_options(env, baseline_config, chosen, trained_here=trained_here)
    if not network_options.gate_available:
        _require_no_gate(env, pins or {})
    recorded = env.code.check_start(env, Path(env_path).parent, on_event)
    message = f"HEAD is detached: the baseline is commit {baseline[:12]}; your branches are not changed"
    linked = preflight.linked_worktree_note(workspace, workspace.linked_worktree, baseline)
    found = (linked, message if workspace.head_ref() is None else None, _slower_note(env, here=trained_here))
    notes = tuple(note for note in found if note is not None)
    return StartCheck(workspace, env, env_text, baseline, baseline_config, network_options, secret, notes, recorded)


@dataclass(frozen=True)
class ResumeCheck:
    """An earlier run that can be resumed; nothing is written yet.

    Attributes:
        env_text: The env file as the run keeps it.
        baseline_config: The config of the editable modules at the baseline commit.
        inputs: What a predecoder of this env can read.
        notes: Notes for the user.
        recorded: The env's recorded shots, if they are to be provided again.
    """

    repo: Repo
    layout: RunLayout
    info: RunInfo
    env: EnvSpec
    env_text: str
    baseline_config: dict[str, Any]
    network_options: NetworkOptions
    notes: tuple[str, ...]
    recorded: RunShots | None = None


def check_resume(
    run_id: str,
    repo: Path | str,
    recorded: Path | None = None,
    *,
    trained_here: bool = True,
    on_event: OnEvent = ignore,
) -> ResumeCheck:
    """Check everything that resuming a run needs, except the lock and recovery.

    Nothing is written.

    Args:
        run_id: The run.
        repo: A directory of the repository.
        recorded: Directory of the run's recorded shots, if it has moved.
        trained_here: See `find_network_options`.
        on_event: Receives the progress of hashing the recorded shots.

    Raises:
        UsageError: There is no such run, it is closed, its recorded shots are missing, or git or the file system does
            not allow a round.
        ManualInterventionRequired: Env, secret, baseline commit or the code that can change results is not what the
            run started with.
    """
    workspace = Repo.discover(repo)
    layout = RunLayout(workspace.root, run_id)
    if not RUN_ID.match(run_id) or not layout.root.is_dir():
        raise UsageError("there is no such run here", location=f"run {run_id}", hint="autoqec show")
    info = History(layout).info()
    require_own_directory(layout, info)
    env_text = files.read_text(layout.env, what="the run's env", hint=f"restore {layout.env}")
    env = files.parse_env(env_text, location=str(layout.env))
    require_only_copy(layout)
    notes = _require_unchanged(workspace, layout, info, env_text)
    _require_writable(layout.root)
    config = baseline_config_at(workspace, info.baseline_sha)
    options = find_network_options(env, config, profile_of(info.profile), trained_here=trained_here)
    if (slower := _slower_note(env, here=trained_here)) is not None:
        notes.append(slower)
    shots = None
    if recorded is None:
        env.code.check_resumed(env, layout)
    else:
        shots = env.code.check_moved(env, recorded, str(layout.root), on_event)
    return ResumeCheck(workspace, layout, info, env, env_text, config, options, tuple(notes), shots)


def _require_no_gate(env: EnvSpec, pins: Pins) -> None:
    """Raise UsageError if a gate is pinned although matching of the env has no complementary gap."""
    from autoqec.decoders.gating import Gate
    from autoqec.qec.problem import Problem

    pinned = [key for key, value in pins.items() if key.partition(".")[0] == "gate" and value is not None]
    for p in env.points if pinned else ():
        Gate(Problem.from_env(env, p), 1.0, hint=f"leave out --pin {pinned[0]}")


def _slower_note(env: EnvSpec, *, here: bool) -> str | None:
    """Return a note if rounds of an env, trained on this machine, lack the C extension."""
    from autoqec.qec.weighted_mwpm import missing_extension

    return missing_extension(env.backend) if here else None


def _require_unchanged(repo: Repo, layout: RunLayout, info: RunInfo, env_text: str) -> list[str]:
    """Check that what the run fixed at its start is still the same; return notes for the user."""
    read_secret(layout, info)
    check_workspace(repo)
    was, now = info.env_yaml_sha256, sha256_bytes(env_text.encode())
    if was != now:
        message = f"the env has changed: its SHA-256 is {now}, at the start of the run {was}"
        raise ManualInterventionRequired(message, location=str(layout.env), hint=f"restore {layout.env}")
    if repo.rev_parse(info.baseline_sha) is None:
        message = f"git no longer has the baseline commit {info.baseline_sha}"
        raise ManualInterventionRequired(message, location=info.run_id, hint="git fetch")
    note = code_change(info)
    return [] if note is None else [note]


def check_workspace(repo: Repo) -> None:
    """Check that git can create, check out and commit the branches of rounds here; UsageError if it cannot."""
    preflight.check_repository(repo, (EDITABLE_CONFIG, pointer_on_branch(1)))


def baseline_config_at(repo: Repo, commit: str) -> dict[str, Any]:
    """Return the config of a commit's editable modules. Raises UsageError if it is missing or invalid."""
    data = repo.show_file(commit, EDITABLE_CONFIG)
    if data is None:
        hint = "`autoqec init DIR` creates a repository with editable modules"
        raise UsageError(f"commit {commit[:12]} has no editable modules: {EDITABLE_CONFIG} is missing", hint=hint)
    config = files.load_yaml(data.decode("utf-8", "replace"), location=EDITABLE_CONFIG)
    try:
        return parse_dsl(config, location=EDITABLE_CONFIG).config()
    except ContractError as error:
        raise UsageError(
            error.message, location=EDITABLE_CONFIG, hint=f"edit {EDITABLE_CONFIG} and commit it"
        ) from error


@dataclass(frozen=True)
class NetworkOptions:
    """What a predecoder of an env can have.

    Attributes:
        inputs: What it can read: `all` if no detector lies outside the inner decoder's sector, else `other_sector`.
        gate_available: Whether its config can have a `gate`, which needs the complementary gap of matching.
    """

    inputs: str
    gate_available: bool


def find_network_options(
    env: EnvSpec, config: dict[str, Any], profile: Profile, *, trained_here: bool = True
) -> NetworkOptions:
    """Build the decoding problem at every noise point; of a family, also every circuit's network.

    Args:
        env: The env.
        config: The config of the baseline; its training needs memory.
        profile: Limits the memory of a round.
        trained_here: Whether rounds are trained in the memory of this process, not in jobs of a cluster.

    Raises:
        UsageError: A circuit cannot be decoded, a round would need more memory than there is, no network is within the
            env's limits, or the circuits of a family cannot share weights.
    """
    from autoqec.decoders.cost_limits import require_feasible_limits
    from autoqec.decoders.gating import has_gap
    from autoqec.qec import external_decoders
    from autoqec.qec.problem import Problem
    from autoqec.runner.round_memory import RoundMemory

    external_decoders.require_installed(env)
    training = parse_dsl(config, location=EDITABLE_CONFIG).training
    RoundMemory.of(env, training, profile).require(f"env `{env.name}`", profile, trained_here=trained_here)
    problems = [Problem.from_env(env, p) for p in env.points]
    inputs = "other_sector" if len(problems[0].graph.out_of_sector) else "all"
    require_feasible_limits(env.constraints, problems[0], inputs)
    if env.other_members:
        from autoqec.decoders import family  # imports torch, which takes most of the time of a check without it

        family.require_shared_weights(env, inputs)
    return NetworkOptions(inputs, gate_available=all(has_gap(problem) for problem in problems))


def code_change(info: RunInfo) -> str | None:
    """Compare the installed code with the code that the run began with.

    Returns:
        A note if code changed that cannot change a result, or if an earlier version started the run: version 1 stored
        one hash of the whole package, which does not show what changed. None if nothing changed.

    Raises:
        ManualInterventionRequired: Code changed that can change a result, so old and new rounds are not comparable.
    """
    if info.package_sha256 is None:
        return "an earlier version of AutoQEC started this run; the installed version measures the new rounds"
    if info.code_sha256 != machine.code_sha256():
        raise ManualInterventionRequired(
            f"code that can change results ({', '.join(machine.RESULT_PACKAGES)}) has changed since the start of the "
            "run, so its old and new rounds would not be comparable",
            location=info.run_id,
            hint="check out or install the version that started it, or start a new run",
        )
    if info.package_sha256 != machine.package_sha256():
        return "code that cannot change results has changed since the start of the run"
    return None


def _require_clean(repo: Repo) -> None:
    dirty = repo.dirty_paths(EDITABLE_MODULES)
    if dirty:
        message = f"the editable modules have uncommitted changes: {', '.join(dirty[:3])}"
        raise UsageError(
            message, location=EDITABLE_MODULES, hint=f"git add {EDITABLE_MODULES} && git commit, or git stash"
        )


def _require_writable(directory: Path) -> None:
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError("is not a writable directory", location=str(directory), hint=f"chmod u+rwx {directory}")
