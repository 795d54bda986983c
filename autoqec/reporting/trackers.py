"""Exports a run to experiment trackers: event files of tensorboard, and offline runs of wandb.

Both need their own packages, which are extras of autoqec.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoqec import optional
from autoqec.errors import StorageError, UsageError
from autoqec.reporting.run_report import RoundEntry, RunReport
from autoqec.reporting.text import plain
from autoqec.store import atomic, train_log

FIGURES = (
    *("delta_ler", "ler_plain_classical", "ler_predecoder", "val_shots", "val_errors_plain", "val_errors_predecoder"),
    *("delta_vs_baseline_holdout", "delta_holdout_low", "delta_holdout_high"),
    *("relative_holdout", "relative_holdout_low", "relative_holdout_high", "holdout_shots"),
    *("n_params", "flops_per_syndrome", "train_shots", "train_wallclock_s", "eval_wallclock_s"),
)


def to_tensorboard(report: RunReport, directory: Path) -> None:
    """Write losses by step and results by round, for `tensorboard --logdir DIRECTORY`."""
    from torch.utils.tensorboard import SummaryWriter

    for round_entry in report.rounds:
        with SummaryWriter(str(directory / _name(round_entry))) as writer:
            writer.add_text("hypothesis", plain(round_entry.row.hypothesis), round_entry.row.round)
            for step, loss in train_log.read(report.layout.round(round_entry.row.round).train_log).entries:
                writer.add_scalar("loss", loss, step)
            for name, value in _figures(report, round_entry).items():
                writer.add_scalar(f"round/{name}", value, round_entry.row.round)


def to_wandb(report: RunReport, directory: Path) -> None:
    """Write one offline wandb run per round, grouped by the run id, for `wandb sync DIRECTORY/offline-run-*`.

    Nothing is sent and no key is needed. The config is the round's, the history its loss, the summary its results and
    verdict. Host name, installed packages and git remotes are left out.
    """
    with tempfile.TemporaryDirectory(prefix="autoqec-wandb-") as home, _wandb_environment(Path(home)):
        import wandb

        settings = wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            host="autoqec",
        )
        try:
            for round_entry in report.rounds:
                _wandb_run(wandb, settings, Path(home), report, round_entry)
        except wandb.Error as error:
            raise UsageError(f"wandb failed: {plain(str(error))}", location="--format wandb") from error
        finally:
            wandb.teardown()
        for made in sorted(Path(home, "wandb").glob("offline-run-*")):
            shutil.rmtree(made / "logs", ignore_errors=True)  # debug logs of wandb, with paths of this machine
            shutil.move(made, directory / made.name)


def _wandb_run(wandb: Any, settings: Any, home: Path, report: RunReport, round_entry: RoundEntry) -> None:
    run = wandb.init(
        project="autoqec",
        id=f"{report.layout.run_id}-{_name(round_entry)}",
        name=f"{report.layout.run_id} {_name(round_entry)}",
        group=report.layout.run_id,
        tags=[plain(round_entry.outcome, 60)],
        notes=_utf8_safe(plain(round_entry.row.hypothesis)),
        config=_utf8_safe_value(round_entry.row.dsl_config or {}),
        dir=str(home),
        settings=settings,
        reinit="create_new",
    )
    for step, loss in train_log.read(report.layout.round(round_entry.row.round).train_log).entries:
        run.log({"loss": loss}, step=step)
    run.summary.update(
        {"round": round_entry.row.round, "outcome": round_entry.outcome, "env": _utf8_safe(report.info.env_name)}
    )
    run.summary.update(_figures(report, round_entry))
    run.finish()


WRITERS: dict[str, Callable[[RunReport, Path], None]] = {"tensorboard": to_tensorboard, "wandb": to_wandb}


def write(report: RunReport, form: str, directory: Path) -> Path:
    """Write the run into `directory`, completely or not at all.

    Raises:
        UsageError: The directory is not empty, or the package of the tracker is missing.
        StorageError: The directory cannot be written.
    """
    optional.require_installed(form, extra=form, location=f"--format {form}")
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise UsageError("is not an empty directory", location=str(directory), hint="name a new directory")
    atomic.make_dir(directory.parent)
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            WRITERS[form](report, made)
            made.chmod(0o755)
            os.replace(made, directory)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"could not be written: {error.strerror or error}", location=str(directory)) from error
    return directory


def _name(round_entry: RoundEntry) -> str:
    """round_3; with a suffix if the round number occurs again, as in the anchor."""
    return "round_" + round_entry.anchor.rpartition("-round-")[2]


def _figures(report: RunReport, round_entry: RoundEntry) -> dict[str, float]:
    """Results of the round from its row, and the error counts of its verification."""
    figures = {name: getattr(round_entry.row, name) for name in FIGURES}
    verification = report.verification(round_entry)
    if verification is not None and verification.effect is not None:
        counts = verification.effect.counts
        figures |= {"holdout_errors_plain": counts.errors_reference, "holdout_errors": counts.errors_candidate}
    return {name: value for name, value in figures.items() if value is not None}


@contextmanager
def _wandb_environment(home: Path) -> Iterator[None]:
    """Keep the files of wandb below `home` and switch its error reports off."""
    wandb_dirs = {f"WANDB_{name}": str(home) for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")}
    before = dict(os.environ)
    os.environ.update(wandb_dirs, WANDB_ERROR_REPORTING="false")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _utf8_safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _utf8_safe_value(value: Any) -> Any:
    """Return the value with every string made encodable as UTF-8."""
    if isinstance(value, str):
        return _utf8_safe(value)
    if isinstance(value, dict):
        return {_utf8_safe(str(key)): _utf8_safe_value(part) for key, part in value.items()}
    return [_utf8_safe_value(part) for part in value] if isinstance(value, list | tuple) else value
