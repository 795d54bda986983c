"""`autoqec run-round`: one Runner round, by hand or for a cluster's job."""

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


@click.command("run-round")
@click.argument("env_name", metavar="ENV")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("round_dir", type=click.Path(path_type=Path))
@click.option(
    "--profile",
    type=click.Choice(["smoke", "dev", "prod"]),
    default="dev",
    show_default=True,
    help="How long it trains: for seconds, minutes or hours.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="The round's seed.")
@click.option("--run-id", default="local", show_default=True, help="The run that it is said to belong to.")
@click.option("--round-idx", type=click.IntRange(1), default=1, show_default=True, help="The round's number.")
@click.option("--code-cwd", type=click.Path(path_type=Path), help="Worktree whose search surface is run.")
@click.option("--branch", help="The worktree's branch; the round then writes its pointer.")
@click.option("--fork-from", multiple=True, help="The round's parent; several times for a composition.")
@click.option("--compose-mode", type=click.Choice(["pure", "with_edit"]), help="How its parents were joined.")
@click.option("--round-attempt-id", help="The attempt's id, for its pointer.")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of torch; one thread repeats to the last digit.",
)
@options
def command(env_name: str, config: Path, round_dir: Path, out: Output, **chosen: Any) -> None:
    """Train and measure one predecoder: the env ENV, the configuration CONFIG, everything written into ROUND_DIR.

    Without --code-cwd the search surface of the repository one stands in is run, so a checked-out round repeats itself.
    """
    from autoqec.contracts.round import RunnerConfig
    from autoqec.orchestrator.rounds import require_sandbox
    from autoqec.reporting.terminal import LiveView, console
    from autoqec.runner.runner import run_round
    from autoqec.store.files import load_env, load_yaml, read_text

    _, env_yaml = load_env(locate.env_file(env_name))
    predecoder = load_yaml(read_text(config, what="predecoder config"), location=str(config))
    _check(predecoder, config)
    if round_dir.exists() and any(round_dir.iterdir() if round_dir.is_dir() else [round_dir]):
        raise UsageError("is not an empty directory", location=str(round_dir), hint="name a new one")
    code_cwd = chosen.pop("code_cwd") or _current_repository()
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
        metrics = run_round(runner_config, on_event=view)
    out.emit(metrics.dump())
    if metrics.status != "ok":
        out.say(f"{metrics.status}: {metrics.status_reason}")
        raise click.exceptions.Exit(1)
    out.say(f"Δ_LER = {metrics.delta_ler:+.3e} on {metrics.val_shots} validation shots; {round_dir}/metrics.json")


def _check(predecoder: Any, config: Path) -> None:
    """A wrong key is the user's to mend here; inside a run it is a round that failed."""
    from autoqec.contracts.dsl import parse_dsl
    from autoqec.runner.devices import require_available

    try:
        require_available(parse_dsl(predecoder).training)
    except ContractError as error:
        raise UsageError(error.message, location=str(config), hint=f"edit {config}") from error


def _current_repository() -> Path | None:
    """The repository one stands in, if it has a search surface; else the package's own surface is run."""
    try:
        root = locate.workspace_root()
    except UsageError:
        return None
    return root if (root / layout.EDITABLE_MODULES).is_dir() else None


def _weights(run_id: str, parent: HistoryRow) -> str | None:
    path = locate.run_layout(run_id).stored(parent.checkpoint_path)
    return None if path is None else str(path)


def _parent(run_id: str, fork_from: tuple[str, ...]) -> HistoryRow | None:
    """The row of the branch that the round forks from, where the run is here to tell."""
    from autoqec.store.history import History

    if len(fork_from) != 1 or fork_from[0] == "baseline" or not layout.RUN_ID.match(run_id):
        return None
    rows = History(locate.run_layout(run_id)).rows()
    return next((row for row in rows if row.branch == fork_from[0] and row.status == "ok"), None)
