"""Checks before a run starts or is resumed; they write nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec import plugins
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.history import RunInfo
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.run_spec import RunSpec
from autoqec.decoders.gating import Gate, has_gap
from autoqec.errors import ContractError, ManualInterventionRequired, UsageError
from autoqec.orchestrator.plugin_protocols import RunRequest, executor_plugins, run_plugins
from autoqec.orchestrator.recovery.inspect import require_own_directory
from autoqec.orchestrator.roles import check_ideator
from autoqec.orchestrator.run import CheckedRun, NetworkOptions
from autoqec.orchestrator.secret import new_secret, read_secret, require_only_copy
from autoqec.qec import external_decoders
from autoqec.qec.problem import Problem
from autoqec.qec.weighted_mwpm import missing_extension
from autoqec.runner.devices import require_available
from autoqec.runner.round_memory import RoundMemory
from autoqec.store import files
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_CONFIG, EDITABLE_MODULES, RunLayout, pointer_on_branch, runs_dir
from autoqec.system import machine
from autoqec.system.git import Repo, preflight

if TYPE_CHECKING:
    pass


def check(request: RunRequest, on_event: OnEvent = ignore, *, own_roles: bool = False) -> CheckedRun:
    """Check everything that a start or a resume needs, except the lock and recovery; called once per process.

    Nothing is written.

    Args:
        request: The run.
        on_event: Receives the progress of reading recorded shots.
        own_roles: Whether the caller builds the roles, so that the ideator is only a name.

    Raises:
        UsageError: A check failed; names which.
        ManualInterventionRequired: Env, secret, baseline commit or the code that can change results is not what the
            run started with.
    """
    if not own_roles:
        check_ideator(request)
    if request.spec.executor != "local":
        plugins.load("autoqec.executors", request.spec.executor)
    for plugin in executor_plugins() if own_roles else run_plugins():
        request = replace(request, spec=request.spec.with_block(plugin.check(request)))
    if request.layout is None:
        return _check_start(request, on_event)
    return _check_resume(request, request.layout, on_event)


def _check_start(request: RunRequest, on_event: OnEvent) -> CheckedRun:
    assert request.env_path is not None  # a run is either new or resumed
    spec, repo, here = request.spec, request.repo, request.spec.executor == "local"
    env, env_text = files.load_env(request.env_path)
    baseline = repo.head_sha()
    baseline_config = baseline_config_at(repo, baseline)
    check_workspace(repo)  # first, since a missing filter program also breaks `git status`
    _require_clean(repo)
    runs_root = runs_dir(repo.root)
    _require_writable(runs_root if runs_root.exists() or runs_root.is_symlink() else repo.root)
    secret = new_secret(spec.secret_file)
    network_options = check_env(env, baseline_config, spec)
    recorded = env.code.check_start(env, request.env_path.parent, on_event)
    detached = f"HEAD is detached: the baseline is commit {baseline[:12]}; your branches are not changed"
    notes = (
        preflight.linked_worktree_note(repo, repo.linked_worktree, baseline),
        detached if repo.head_ref() is None else None,
        missing_extension(env.backend) if here else None,
    )
    return CheckedRun(
        request, env, env_text, baseline, baseline_config, network_options, _without_none(notes), recorded, secret
    )


def _check_resume(request: RunRequest, layout: RunLayout, on_event: OnEvent) -> CheckedRun:
    spec, repo, here = request.spec, request.repo, request.spec.executor == "local"
    for plugin in executor_plugins():
        plugin.require_free(layout)
    info = History(layout).info()
    require_own_directory(layout, info)
    env_text = files.read_text(layout.env, what="the run's env", hint=f"restore {layout.env}")
    env = files.parse_env(env_text, location=str(layout.env))
    require_only_copy(layout)
    code_note = _require_unchanged(repo, layout, info, env_text)
    _require_writable(layout.root)
    config = baseline_config_at(repo, info.baseline_sha)
    network_options = check_env(env, config, spec)
    notes = (code_note, missing_extension(env.backend) if here else None)
    if (directory := spec.recorded) is None:
        env.code.check_resumed(env, layout)
    recorded = None if directory is None else env.code.check_moved(env, directory, str(layout.root), on_event)
    return CheckedRun(
        request, env, env_text, info.baseline_sha, config, network_options, _without_none(notes), recorded
    )


def _without_none(notes: tuple[str | None, ...]) -> tuple[str, ...]:
    return tuple(note for note in notes if note is not None)


def _require_unchanged(repo: Repo, layout: RunLayout, info: RunInfo, env_text: str) -> str | None:
    """Check that what the run fixed at its start is still the same; return a note for the user."""
    read_secret(layout, info)
    check_workspace(repo)
    was, now = info.env_yaml_sha256, sha256_bytes(env_text.encode())
    if was != now:
        message = f"the env has changed: its SHA-256 is {now}, at the start of the run {was}"
        raise ManualInterventionRequired(message, location=str(layout.env), hint=f"restore {layout.env}")
    if repo.rev_parse(info.baseline_sha) is None:
        message = f"git no longer has the baseline commit {info.baseline_sha}"
        raise ManualInterventionRequired(message, location=info.run_id, hint="git fetch")
    return code_change(info)


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


def check_env(env: EnvSpec, config: dict[str, Any], spec: RunSpec) -> NetworkOptions:
    """Build the decoding problem at every noise point once; of a family, also every circuit's network.

    Args:
        env: The env.
        config: The config of the baseline; its training needs memory.
        spec: The run: its profile limits the memory of a round, which this process has only if it trains rounds.

    Raises:
        UsageError: A circuit cannot be decoded, a round would need more memory than there is, no network is within the
            env's limits, the circuits of a family cannot share weights, or a gate is pinned that no network can have.
    """
    from autoqec.decoders.cost_limits import require_feasible_limits

    here, profile = spec.executor == "local", profile_of(spec.profile)
    if here and spec.pins:
        require_available(parse_dsl(apply_pins({"type": "mlp", "mlp": {}}, spec.pins)).training)
    external_decoders.require_installed(env)
    training = parse_dsl(config, location=EDITABLE_CONFIG).training
    RoundMemory.of(env, training, profile).require(f"env `{env.name}`", profile, trained_here=here)
    problems = [Problem.from_env(env, p) for p in env.points]
    inputs = "other_sector" if len(problems[0].graph.out_of_sector) else "all"
    require_feasible_limits(env.constraints, problems[0], inputs)
    if env.other_members:
        from autoqec.decoders import family  # imports torch, which takes most of the time of a check without it

        family.require_shared_weights(env, inputs)
    gate_available = all(has_gap(problem) for problem in problems)
    pinned = [key for key, value in spec.pins.items() if key.partition(".")[0] == "gate" and value is not None]
    for problem in problems if pinned and not gate_available else ():
        Gate(problem, 1.0, hint=f"leave out --pin {pinned[0]}")
    return NetworkOptions(inputs, gate_available)


def code_change(info: RunInfo) -> str | None:
    """Compare the installed code with the code that the run began with.

    Returns:
        A note if code changed that cannot change a result; None if nothing changed.

    Raises:
        ManualInterventionRequired: Code changed that can change a result, so old and new rounds are not comparable.
    """
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
