"""report.html: one file, nothing fetched, foreign text shown as text."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.profiles import PROFILES, Profile
from autoqec.contracts.verdict import PairedEffect, Rate
from autoqec.reporting import figures, loss
from autoqec.reporting.run_data import RunData, load, validation
from autoqec.reporting.text import count, duration, interval, paragraphs, percent, plain
from autoqec.reporting.tree import tree
from autoqec.store import atomic
from autoqec.store.files import dump_config
from autoqec.store.layout import RunLayout

if TYPE_CHECKING:
    from jinja2 import Environment

TREE_NODES = 200  # over all runs of a page


def write(layouts: Sequence[RunLayout], path: Path) -> Path:
    """The page about these runs at `path`. Raises what `load` raises, StorageError where it cannot be written."""
    text = page(load(layouts))
    atomic.make_dir(path.parent)
    atomic.write_text(path, text)
    return path


def page(runs: Sequence[RunData], *, following: bool = False) -> str:
    """The whole document. following: it asks its own server for changes, and reloads."""
    script = _template_text("report.js")
    # Gains of different envs do not compare, so they share no chart.
    together = len({run.info.env_yaml_sha256 for run in runs}) == 1 < len(runs)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            runs=runs,
            following=following,
            style=_template_text("report.css"),
            script=script,
            policy=policy(script, following=following),
            together=together,
            shared=_figures(runs) if together else {},
            own=[{} if together else _figures([run]) for run in runs],
            trees=[tree(run.listed[-(TREE_NODES // len(runs)) :]) for run in runs],
            profiles=PROFILES,
        )
    )


def _figures(runs: Sequence[RunData]) -> dict[str, str]:
    return {name: figures.inline(name, runs) for name in figures.FIGURES}


def notice(title: str, words: str) -> str:
    """A page that says why there is no report (yet)."""
    script = _template_text("report.js")
    template = _environment().get_template("notice.html.j2")
    parts = {"style": _template_text("report.css"), "script": script, "policy": policy(script, following=True)}
    return template.render(title=title, words=words, **parts)


def policy(script: str, *, following: bool) -> str:
    """What the page may do: its own style, this one script, nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    ask = "; connect-src 'self'" if following else ""
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:{ask}; "
        "base-uri 'none'; form-action 'none'"
    )


def claim(run: RunData) -> str:
    """The run in one sentence."""
    best = run.best
    report = run.report(best) if best else None
    if report is not None:
        return report.claim
    if best is not None:
        gain = f"{percent(best.row.relative_holdout)} {_interval(best.row)}".strip()
        return f"Round {best.row.round} is verified: {gain} fewer failures than the plain backend on unseen shots."
    ended = len(run.rounds)
    if not ended:
        return "No round has ended yet."
    judged = sum(one.row.verify_verdict is not None for one in run.rounds)
    failed = sum(one.row.status != "ok" for one in run.rounds)
    words = f"No decoder is verified: of {ended} round{'s' * (ended != 1)} {judged} came before the judge"
    return words + (f" and {failed} ended without a result." if failed else ".") + null_result_note(run)


def profile_limits(run: RunData) -> Profile:
    """What the profile allows a round of this env."""
    profile = PROFILES[run.info.profile]
    return profile if run.env is None else profile.scaled(run.env.protocol.shots_share)


def null_result_note(run: RunData) -> str:
    """What a null result could have seen, from the last rate of the plain backend that was measured."""
    from autoqec.qec.stats import detectable_effect

    rate = next((row.ler_plain_classical for row in reversed(run.view.rows) if row.ler_plain_classical), None)
    if rate is None or rate >= 1:
        return ""
    shots = min(
        profile_limits(run).judge_test_shots, profile_limits(run).judge_effect_shots
    )  # a verdict needs both draws
    detectable_gain = detectable_effect(shots, rate)
    return f" On {count(shots)} fresh shots a gain below about {100 * detectable_gain:.0f}% may well have been missed."


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    jinja_env = Environment(
        loader=PackageLoader("autoqec.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_env.filters.update(
        words=paragraphs,
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
        strokes=loss.strokes,
        validation=validation,
        judged_interval=_interval,
    )
    jinja_env.globals.update(claim=claim, used=used, outcomes=_outcomes)
    return jinja_env


def _template_text(name: str) -> str:
    return (resources.files("autoqec.reporting") / "templates" / name).read_text(encoding="utf-8")


def _rate(value: Rate) -> str:
    return f"{value.rate:.3e} [{value.low:.3e}, {value.high:.3e}]"


def _reference_rate(effect: PairedEffect) -> str:
    from autoqec.qec.stats import rate

    return _rate(rate(effect.counts.errors_reference, effect.counts.shots))


def _errors(effect: PairedEffect) -> str:
    """Errors of the reference → of the decoder, of so many shots."""
    counts = effect.counts
    return f"{counts.errors_reference:,} → {counts.errors_candidate:,} of {counts.shots:,}"


def _gain(effect: PairedEffect) -> str:
    return f"{percent(effect.relative)} {interval(effect.relative_low, effect.relative_high)}".strip()


def _interval(row: Any) -> str:
    return interval(row.relative_holdout_low, row.relative_holdout_high)


def _config(value: dict[str, Any] | None) -> str:
    return paragraphs(dump_config(value).replace("\n\n", "\n"), 6000) if value else ""


def _outcomes(run: RunData) -> list[tuple[str, int]]:
    return Counter(one.outcome for one in run.rounds).most_common()


def used(run: RunData) -> list[tuple[str, str, str]]:
    """What the run took: of what, how much, and what the profile allows a round."""
    profile = profile_limits(run)
    rows = [one.row for one in run.rounds]
    reports = [detail.report for detail in run.details.values() if detail.report]
    judged = sum(row.verify_verdict is not None for row in rows)
    of = "" if len(reports) >= judged else f" (of {len(reports)} judgements of {judged})"
    lines = [
        ("training shots", count(sum(row.train_shots or 0 for row in rows)), _allowed_shots(profile)),
        ("training time", _total_duration(row.train_wallclock_s for row in rows), duration(profile.round_wallclock_s)),
        ("validation time", _total_duration(row.eval_wallclock_s for row in rows), "within the round's time"),
        ("validation shots", count(sum(row.val_shots or 0 for row in rows)), count(profile.val_shots)),
        ("judge's test shots", count(_test_shots(reports)) + of, f"{count(profile.judge_test_shots)} at most"),
        (
            "judge's time",
            _total_duration(one.judge_wallclock_s for one in reports) + of,
            duration(profile.judge_wallclock_s),
        ),
        ("judgements", f"{judged}", "error budget α over the whole run"),
        ("largest memory", _max_gb(row.rss_peak_gb for row in rows), f"{profile.memory_gb:g} GB"),
    ]
    if run.spent is not None:
        known = run.spent["cost_usd"]
        cost = "cost unknown" if known is None else f"${known:.4f}"
        lines.append(("language models", f"{run.spent['calls']} calls, {run.spent['failed']} failed, {cost}", ""))
    return lines


def _allowed_shots(profile: Profile) -> str:
    return f"{count(profile.train_shots)}, and {count(profile.finetune_shots)} of fine-tuning"


def _test_shots(reports: Sequence[Any]) -> int:
    return sum(report.test.counts.shots for report in reports if report.test)


def _total_duration(seconds: Any) -> str:
    return duration(sum(second or 0.0 for second in seconds))


def _max_gb(sizes: Any) -> str:
    known = [size for size in sizes if size is not None]
    return f"{max(known):.2f} GB" if known else "–"


def diff_parts(text: str) -> list[tuple[str, str]]:
    """(kind, lines) for stretches of lines of one kind: add, del, hunk, head, same."""
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
