"""Renders runs as one self-contained HTML page that loads nothing and shows untrusted text as text."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.contracts.verdict import PairedEffect, Rate
from autoqec.qec.stats import validation_effect
from autoqec.reporting import figures, loss
from autoqec.reporting.proposals import describe_all_trials, describe_usage, proposed_by_model
from autoqec.reporting.run_report import RunReport, load_pages
from autoqec.reporting.text import count, duration, interval, paragraphs, percent, plain, pluralize
from autoqec.reporting.tree import tree
from autoqec.store import atomic
from autoqec.store.files import dump_config
from autoqec.store.layout import RunLayout

if TYPE_CHECKING:
    from jinja2 import Environment

TREE_NODES = 200  # over all runs of a page


def write(layouts: Sequence[RunLayout], path: Path) -> Path:
    """Write the page about these runs to `path`.

    Raises:
        UsageError: There is no such run.
        ManualInterventionRequired: The history of a run is damaged.
        StorageError: The file cannot be written.
    """
    text = page(load_pages(layouts))
    atomic.make_dir(path.parent)
    atomic.write_text(path, text)
    return path


def page(runs: Sequence[RunReport], *, following: bool = False) -> str:
    """Render the document; following: it polls its server for changes and reloads."""
    script = template_text("report.js")
    # Gains on different envs are not comparable, so they do not share a chart.
    comparable = len({run.info.env_yaml_sha256 for run in runs}) == 1 < len(runs)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            runs=runs,
            following=following,
            style=template_text("report.css"),
            script=script,
            policy=policy(script, following=following),
            comparable=comparable,
            shared=_figures(runs) if comparable else {},
            own=[{} if comparable else _figures([run]) for run in runs],
            trees=[tree(run.listed[-(TREE_NODES // len(runs)) :]) for run in runs],
        )
    )


def _figures(runs: Sequence[RunReport]) -> dict[str, str]:
    return {name: figures.inline(name, runs) for name in figures.FIGURES}


def notice(text: str) -> str:
    """Render a page that says why there is no report (yet)."""
    script = template_text("report.js")
    template = environment().get_template("notice.html.j2")
    parts = {"style": template_text("report.css"), "script": script, "policy": policy(script, following=True)}
    return template.render(title="This run cannot be shown", text=text, **parts)


def policy(script: str, *, following: bool) -> str:
    """Return the Content-Security-Policy of the page: inline styles and this one script, nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    ask = "; connect-src 'self'" if following else ""
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:{ask}; "
        "base-uri 'none'; form-action 'none'"
    )


def claim(run: RunReport) -> str:
    """Summarise the run in one sentence."""
    best = run.best
    report = run.verification(best) if best else None
    if report is not None:
        return report.claim
    if best is not None:
        gain = f"{percent(best.row.relative_holdout)} {_interval(best.row)}".strip()
        compared = f"the {run.terms.reference} on {run.terms.shots}"
        return f"Round {best.row.round} is verified: {gain} fewer failures than {compared}."
    if not run.rounds:
        return "No round has finished yet."
    tested = sum(entry.row.verify_verdict is not None for entry in run.rounds)
    failed = sum(entry.row.status != "ok" for entry in run.rounds)
    text = f"No decoder is verified: of {pluralize(len(run.rounds), 'round')}, {tested} went to verification"
    return text + (f" and {failed} ended without a result." if failed else ".") + null_result_note(run)


def profile_limits(run: RunReport) -> Profile:
    """Return the limits of a round under this profile and env."""
    profile = profile_of(run.info.profile, run.info.scale)
    return profile if run.env is None else profile.scaled(run.env.protocol.shots_share)


def null_result_note(run: RunReport) -> str:
    """State the gain that the run could have detected, from the last measured LER of the baseline decoder.

    On sealed shots the reasons of each verdict state it, because the number of shots differs from round to round.
    """
    from autoqec.qec.stats import detectable_effect

    rate = next((row.ler_plain_classical for row in reversed(run.rows) if row.ler_plain_classical), None)
    if run.on_sealed_shots or rate is None or rate >= 1:
        return ""
    limits = profile_limits(run)
    shots = min(limits.judge_test_shots, limits.judge_effect_shots)  # a verdict needs both draws
    percent_gain = 100 * detectable_effect(shots, rate)
    return f" With {count(shots)} fresh shots, a gain below about {percent_gain:.0f}% may be missed."


def environment() -> Environment:
    """Return the environment of all page templates; it escapes what it inserts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    jinja_env = Environment(
        loader=PackageLoader("autoqec.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_env.filters.update(
        paragraphs=paragraphs,
        plain=plain,
        count=count,
        percent=percent,
        duration=duration,
        sci=lambda value: "–" if value is None else f"{value:+.2e}",
        rate=_rate,
        reference_rate=_reference_rate,
        errors=_errors,
        gain=_gain,
        delta=lambda effect: f"{effect.delta:+.2e} {interval(effect.delta_low, effect.delta_high, relative=False)}",
        config=_config,
        diff_parts=diff_parts,
        polylines=loss.polylines,
        validation=validation_effect,
        test_interval=_interval,
    )
    jinja_env.globals.update(claim=claim, used=used, outcomes=_outcomes)
    return jinja_env


def template_text(name: str) -> str:
    """Return a file of the templates, such as report.css."""
    return (resources.files("autoqec.reporting") / "templates" / name).read_text(encoding="utf-8")


def _rate(value: Rate) -> str:
    return f"{value.rate:.3e} [{value.low:.3e}, {value.high:.3e}]"


def _reference_rate(effect: PairedEffect) -> str:
    from autoqec.qec.stats import rate

    return _rate(rate(effect.counts.errors_reference, effect.counts.shots))


def _errors(effect: PairedEffect) -> str:
    """Errors of reference → decoder, and shots."""
    counts = effect.counts
    return f"{counts.errors_reference:,} → {counts.errors_candidate:,} of {counts.shots:,}"


def _gain(effect: PairedEffect) -> str:
    return f"{percent(effect.relative)} {interval(effect.relative_low, effect.relative_high)}".strip()


def _interval(row: Any) -> str:
    return interval(row.relative_holdout_low, row.relative_holdout_high)


def _config(value: dict[str, Any] | None) -> str:
    return paragraphs(dump_config(value).replace("\n\n", "\n"), 6000) if value else ""


def _outcomes(run: RunReport) -> list[tuple[str, int]]:
    return Counter(entry.outcome for entry in run.rounds).most_common()


def _devices(rows: Sequence[HistoryRow]) -> str:
    names = {row.device for row in rows if row.device}
    return f" (on {len(names)} kinds of devices, so times of rounds are not comparable)" if len(names) > 1 else ""


def _gpu_hours(rows: Sequence[HistoryRow]) -> list[tuple[str, str, str]]:
    hours = sum((row.gpus or 0) * (row.train_wallclock_s or 0.0) for row in rows) / 3600
    return [("GPU hours of training", f"{hours:.2f}", "--budget gpu_hours=H")] if hours else []


def used(run: RunReport) -> list[tuple[str, str, str]]:
    """Return (resource, amount used by the run, limit per round) for each resource."""
    profile = profile_limits(run)
    rows = run.latest_rows
    reports = [details.verification for details in run.details.values() if details.verification]
    tested = sum(row.verify_verdict is not None for row in rows)
    of = "" if len(reports) >= tested else f" (in {len(reports)} of {tested} verifications)"
    lines = [
        ("training shots", count(sum(row.train_shots or 0 for row in rows)), _allowed_shots(profile)),
        (
            "training time",
            _total_duration(row.train_wallclock_s for row in rows) + _devices(rows),
            duration(profile.round_wallclock_s),
        ),
        *_gpu_hours(rows),
        ("validation time", _total_duration(row.eval_wallclock_s for row in rows), "part of the time limit of a round"),
        ("validation shots", count(sum(row.val_shots or 0 for row in rows)), count(profile.val_shots)),
        ("shots of sequential tests", count(_test_shots(reports)) + of, f"at most {count(profile.judge_test_shots)}"),
        (
            "verification time",
            _total_duration(report.judge_wallclock_s for report in reports) + of,
            duration(profile.judge_wallclock_s),
        ),
        ("verifications", f"{tested}", "error budget α over the whole run"),
        ("peak memory", _max_gb(row.rss_peak_gb for row in rows), f"{profile.memory_gb:g} GB"),
    ]
    return [*lines, *_used_by_proposals(run)]


def _used_by_proposals(run: RunReport) -> list[tuple[str, str, str]]:
    """Return the rows of trials and language models; what was never used has none."""
    lines = []
    if run.trials is None:
        lines.append(("trials", "trials.jsonl cannot be read", ""))
    elif run.trials:
        lines.append(("trials", describe_all_trials(run.trials), "counted in the compute hours"))
    if run.llm_usage is not None:
        rows = run.finished_rows
        lines.append(("language models", describe_usage(run.llm_usage), ""))
        lines += [(f"… {plain(role)}", describe_usage(usage), "") for role, usage in run.llm_usage["by_role"].items()]
        lines.append(("rounds proposed by a model", f"{proposed_by_model(rows)} of {len(rows)}", ""))
    return lines


def _allowed_shots(profile: Profile) -> str:
    return f"{count(profile.train_shots)}, plus {count(profile.finetune_shots)} for fine-tuning"


def _test_shots(reports: Sequence[Any]) -> int:
    return sum(report.test.counts.shots for report in reports if report.test)


def _total_duration(seconds: Any) -> str:
    return duration(sum(second or 0.0 for second in seconds))


def _max_gb(sizes: Any) -> str:
    known = [size for size in sizes if size is not None]
    return f"{max(known):.2f} GB" if known else "–"


def diff_parts(text: str) -> list[tuple[str, str]]:
    """Split a diff into (kind, lines) stretches; kinds: add, del, hunk, head, same."""
    parts: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        kind = _kind(line)
        if not parts or parts[-1][0] != kind:
            parts.append((kind, []))
        parts[-1][1].append(line)
    return [(kind, "\n".join(lines)) for kind, lines in parts]


def _kind(line: str) -> str:
    if line.startswith(("diff --git", "index ", "--- ", "+++ ", "new file", "deleted file", "old mode", "new mode")):
        return "head"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")
