"""Exports the results of a run to CSV and to the formats of sinter, tensorboard and wandb.

The last two need their own packages, which are extras of autoqec.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoqec import optional
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import StorageError, UsageError
from autoqec.reporting import run_report
from autoqec.reporting.run_report import RoundEntry, RunReport
from autoqec.reporting.text import plain
from autoqec.store import atomic, train_log
from autoqec.store.layout import RunLayout

_NESTED = ("fork_from", "fork_from_ordered", "dsl_config", "verify_reasons", "beats_panel", "conflicting_files")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(run: RunReport) -> str:
    """Format history as CSV: one line per row, one column per field; lists and mappings as JSON.

    Text that a spreadsheet would read as a formula gets a leading apostrophe.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, list(HistoryRow.model_fields), restval="", extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in run.rows:
        table.writerow({key: _cell(key, value) for key, value in row.model_dump(mode="json").items()})
    return text.getvalue()


def to_sinter_csv(run: RunReport) -> str:
    """Format the effect draws of all verifications as a sinter CSV file, as `sinter plot --in FILE` reads it.

    Decoders are the baselines and `<inner decoder>+round<N>`; `m.p` is the physical error rate (null: noise of the
    circuit file). Shots of the sequential test are left out, because its stopping time depends on them. Times are left
    out, because they were not measured in isolation.
    """
    import sinter

    code = run.env.code.model_dump(mode="json", exclude={"text"}) if run.env else {}
    lines = [sinter.CSV_HEADER]
    for round_entry in run.rounds:
        report = run.verification(round_entry)
        if report is None or report.effect is None:
            continue
        for decoder, p, errors, shots in _rates(round_entry, report):
            meta = {"env": report.env_name, "p": p, "d": code.get("distance"), "r": code.get("rounds")}
            # A baseline compared with several candidates is one decoder on more shots: sinter adds them up.
            artifact = report.artifact_sha256 if "+" in decoder else None
            identity = json.dumps([report.env_yaml_sha256, artifact, decoder, meta], sort_keys=True)
            stats = sinter.TaskStats(
                strong_id=hashlib.sha256(identity.encode()).hexdigest(),
                decoder=decoder,
                json_metadata=meta,
                shots=shots,
                errors=errors,
            )
            lines.append(stats.to_csv_line())
    return "\n".join(lines) + "\n"


def _rates(round_entry: RoundEntry, report: VerifyReport) -> Iterator[tuple[str, float | None, int, int]]:
    """(decoder, p, errors, shots) of the candidate, and of the baselines on the same shots."""
    effect, candidate_name = report.effect, f"{report.backend}+round{round_entry.row.round}"
    assert effect is not None
    yield candidate_name, effect.p, effect.counts.errors_candidate, effect.counts.shots
    for member in report.panel:
        yield member.name, member.against.p, member.rate.errors, member.rate.shots
    for point in report.points:
        if point.reference == report.backend:  # other baselines were measured on the same shots
            yield candidate_name, point.p, point.counts.errors_candidate, point.counts.shots
        yield point.reference, point.p, point.counts.errors_reference, point.counts.shots


def _cell(key: str, value: Any) -> Any:
    if value is None:
        return ""
    if key in _NESTED and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=True)
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode()
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


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


TEXT_FORMATS: dict[str, tuple[str, Callable[[RunReport], str]]] = {
    "csv": ("history.csv", to_csv),
    "sinter-csv": ("sinter.csv", to_sinter_csv),
}
FORMATS = (*TEXT_FORMATS, *WRITERS)


def export(layout: RunLayout, form: str, target: Path | None = None) -> Path:
    """Write the run in this format and return the path.

    Args:
        layout: The run.
        form: One of FORMATS.
        target: A file; for a tracker an empty directory. By default below `exports/` of the run.
    """
    run = run_report.load(layout)
    if form in TEXT_FORMATS:
        name, render = TEXT_FORMATS[form]
        path = target or layout.exports / name
        if path.is_dir():
            raise UsageError("is a directory", location=str(path), hint="name a file")
        atomic.make_dir(path.parent)
        atomic.write_text(path, render(run))
        return path
    return write(run, form, target or layout.exports / form)
