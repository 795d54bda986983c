"""`autoqec run-round`: train and measure one predecoder, without a run or as a cluster job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.contracts.history import HistoryRow
from autoqec.errors import ContractError, UsageError
from autoqec.store import layout
from autoqec.system.git import Repo


@click.command("run-round")
@click.argument("env_name", metavar="ENV")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("round_dir", type=click.Path(path_type=Path))
@click.option(
    "--profile",
    type=click.Choice(["smoke", "dev", "prod"]),
    default="dev",
    show_default=True,
    help="Training effort: seconds, minutes or hours.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.01, 1000),
    default=1.0,
    show_default=True,
    help="Factor on the profile's training.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Random seed of training.",
)
@click.option("--run-id", default="local", show_default=True, help="Run id to record.")
@click.option("--round-idx", type=click.IntRange(1), default=1, show_default=True, help="Round number to record.")
@click.option("--code-cwd", type=click.Path(path_type=Path), help="Worktree whose editable modules are used.")
@click.option("--branch", help="Branch of the worktree; writes the pointer file of the round there.")
@click.option("--fork-from", multiple=True, help="Branch of the parent round; repeat it for a composition.")
@click.option(
    "--compose-mode", type=click.Choice(["pure", "with_edit"]), help="How the parents of a composition were merged."
)
@click.option("--round-attempt-id", help="Attempt id for the pointer file.")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of CPU threads; only 1 is exactly reproducible.",
)
@options
def command(env_name: str, config: Path, round_dir: Path, out: Output, **chosen: Any) -> None:
    """Train the predecoder of CONFIG (a YAML file) for ENV and measure it; write results to the new ROUND_DIR.

    Without --code-cwd, the editable modules of the current worktree are used: check out the branch of a round to
    repeat it.
    """
    from autoqec.contracts.round import RunnerConfig
    from autoqec.orchestrator.rounds import require_sandbox
    from autoqec.reporting.terminal import LiveView, console
    from autoqec.runner.runner import run_round
    from autoqec.store.files import load_env, load_yaml, read_text

    _check_options(chosen)
    env_file = locate.env_file(env_name)
    env, env_yaml = load_env(env_file)
    predecoder = load_yaml(read_text(config, what="predecoder config"), location=str(config))
    _check(predecoder, config)
    if round_dir.exists() and any(round_dir.iterdir() if round_dir.is_dir() else [round_dir]):
        raise UsageError("is not an empty directory", location=str(round_dir), hint="choose a new directory")
    code_cwd = chosen.pop("code_cwd") or _current_worktree()
    fork_from = chosen.pop("fork_from")
    parent = _parent(chosen["run_id"], fork_from)
    spec = {
        **chosen,
        "env_yaml": env_yaml,
        "predecoder_config": predecoder,
        "round_dir": os.path.abspath(round_dir),
        "code_cwd": str(code_cwd.resolve()) if code_cwd else None,
        "modules_dir": str((code_cwd / layout.EDITABLE_MODULES).resolve()) if code_cwd else None,
        "fork_from": (fork_from if len(fork_from) > 1 else fork_from[0]) if fork_from else "baseline",
        "parent_delta_ler": parent.delta_ler if parent else None,
        "parent_checkpoint": _weights(chosen["run_id"], parent) if parent else None,
    }
    if code_cwd:
        require_sandbox(code_cwd / layout.EDITABLE_MODULES)
    runner_config = RunnerConfig.read(spec, location="run-round")
    with LiveView(console(err=True), quiet=out.quiet) as view:
        if (shots := env.code.check_start(env, env_file.parent, view)) is not None:
            round_dir.parent.mkdir(parents=True, exist_ok=True)
            shots.provide(Path(os.path.abspath(round_dir)), view)
        metrics = run_round(runner_config, on_event=view)
    out.emit(metrics.dump())
    if metrics.status != "ok":
        out.say(f"{metrics.status}: {metrics.status_reason}")
        raise click.exceptions.Exit(1)
    out.say(f"Δ_LER = {metrics.delta_ler:+.3e} on {metrics.val_shots} validation shots; {round_dir}/metrics.json")


def _check_options(chosen: dict[str, Any]) -> None:
    if chosen["branch"] is not None and (chosen["code_cwd"] is None or chosen["round_attempt_id"] is None):
        hint = "add --code-cwd WORKTREE --round-attempt-id UUID"
        raise UsageError("needs --code-cwd and --round-attempt-id", location="--branch", hint=hint)
    if (chosen["compose_mode"] is not None) != (len(chosen["fork_from"]) > 1):
        message = "is required for a composition (several --fork-from), and applies to nothing else"
        raise UsageError(message, location="--compose-mode", hint="add --compose-mode pure, or remove it")


def _check(predecoder: Any, config: Path) -> None:
    """Raise UsageError for an invalid config; inside a run, the round fails instead."""
    from autoqec.contracts.dsl import parse_dsl
    from autoqec.runner.devices import require_available

    try:
        require_available(parse_dsl(predecoder).training)
    except ContractError as error:
        raise UsageError(error.message, location=str(config), hint=f"edit {config}") from error


def _current_worktree() -> Path | None:
    """Return the current worktree if it has editable modules; otherwise the packaged modules are used."""
    try:
        repo = Repo.discover(Path.cwd())
    except UsageError:
        return None
    root = repo.linked_worktree or repo.root
    return root if (root / layout.EDITABLE_MODULES).is_dir() else None


def _weights(run_id: str, parent: HistoryRow) -> str | None:
    path = locate.run_layout(run_id).stored(parent.checkpoint_path)
    return None if path is None else str(path)


def _parent(run_id: str, fork_from: tuple[str, ...]) -> HistoryRow | None:
    """Return the row of the parent branch, if the run is in this repository."""
    from autoqec.store.history import History

    if len(fork_from) != 1 or fork_from[0] == "baseline" or not layout.RUN_ID.match(run_id):
        return None
    rows = History(locate.run_layout(run_id)).rows()
    return next((row for row in rows if row.branch == fork_from[0] and row.status == "ok"), None)
