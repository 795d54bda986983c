"""Everything at the run root that can be rebuilt: pure functions of run.json and history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoqec.contracts import pins
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.store.run_state import Draft, RoundState, RunState, Totals


def candidate(row: HistoryRow) -> dict[str, Any]:
    """A nominated round that no judge has confirmed, by the Runner's figures."""
    return {
        "round": row.round,
        "delta_ler": row.delta_ler,
        "flops_per_syndrome": row.flops_per_syndrome,
        "n_params": row.n_params,
        "checkpoint_path": row.checkpoint_path,
        "verify_verdict": row.verify_verdict,
    }


def log_head(info: RunInfo) -> str:
    """The beginning of log.md; the `section` of every row follows."""
    head = f"# Run {info.run_id}\n\nEnv `{info.env_name}`, profile {info.profile}, seed {info.seed}, "
    head += f"ideator {info.ideator}, baseline {info.baseline_sha[:12]}.\n\n"
    held = f"Held in every proposal: {pins.format_pins(info.pins)}.\n\n" if info.pins else ""
    guidance = "Val shots steer the search, which reuses them every round: their figures prove nothing. "
    return f"{head}{held}{guidance}The judge's are of fresh shots. Intervals are 95%.\n\n"


def _so_far(totals: Totals, rounds: Mapping[str, RoundState]) -> str:
    """The run as it stood when a row was written."""
    verdicts, ended = totals.verdicts, totals.ended
    parts = [
        f"{ended} round{'s' * (ended != 1)} ended, {totals.nominated} nominated; of these "
        f"{verdicts.get('VERIFIED', 0)} VERIFIED, {verdicts.get('SUSPICIOUS', 0)} SUSPICIOUS, "
        f"{verdicts.get('FAILED', 0)} FAILED."
    ]
    failed = [(status, number) for status, number in sorted(totals.failed.items()) if number]
    if failed:
        parts.append("Without a result: " + ", ".join(f"{number} {status}" for status, number in failed) + ".")
    if totals.lost:
        parts.append(f"Lost to a crash and closed by recovery: {totals.lost}.")
    if totals.best is None:
        return " ".join([*parts, "No decoder is verified yet."])
    best = rounds[totals.best.round_attempt_id].row
    return " ".join([*parts, f"Best verified: round {best.round} (`{totals.best.branch}`), {_holdout(best)}."])


def log(info: RunInfo, rows: Iterable[HistoryRow]) -> str:
    """log.md: the head, then one section per row."""
    draft, sections = Draft(), []
    for row in rows:
        draft.take(row)
        sections.append(section(row, draft))
    return log_head(info) + "".join(sections)


def section(row: HistoryRow, state: RunState | Draft) -> str:
    """One row: what was tried, what happened in figures, what it means, what next; and the run after it."""
    what = row.verify_verdict or ("not nominated" if row.status == "ok" else row.status)
    title = f"## Round {row.round} · {row.branch or 'no branch'} · {what}\n\n"
    origin = "the baseline" if row.fork_from == "baseline" else f"`{row.fork_from_canonical}`"
    if row.compose_mode:
        origin += f", composed ({row.compose_mode})"
    parts = [("Hypothesis", f"{_flat(row.hypothesis)}. From {origin}."), ("What happened", _happened(row))]
    if row.started_at is not None:
        parts.append(("When", f"{row.timing.describe()}."))
    if row.verify_verdict:
        parts.append(("The judge", _judge(row)))
    parts.append(("What it means", _meaning(row)))
    if row.next_hypothesis_seed:
        parts.append(("Next", f"{_flat(row.next_hypothesis_seed)}."))
    parts.append(("So far", _so_far(state.totals, state.rounds)))
    return title + "\n".join(f"**{name}.** {text.replace('..', '.')}\n" for name, text in parts) + "\n"


def _happened(row: HistoryRow) -> str:
    if row.status == "compose_conflict":
        return f"The branches do not merge; both sides changed {', '.join(row.conflicting_files or ())}."
    if row.status == "ok":
        return f"{_flat(row.analysis or row.summary_1line or 'It was measured; nothing was said of it')}."
    return f"It ended without a result, {row.status}: {_flat(row.status_reason or '')}."


def _judge(row: HistoryRow) -> str:
    said = f"{row.verify_verdict}: {_holdout(row)}{_panel(row)}."
    if row.composition_verdict:
        said += f" As a composition, beside its parents on one more draw: {row.composition_verdict}."
    reasons = _flat("; ".join(row.verify_reasons))
    return f"{said} Why: {reasons}." if reasons else said


def _holdout(row: HistoryRow) -> str:
    if row.delta_vs_baseline_holdout is None:
        return "no gain was measured"
    text = f"Δ_LER {row.delta_vs_baseline_holdout:+.2e} {_interval(row.delta_holdout_low, row.delta_holdout_high, 1)}"
    if row.relative_holdout is not None:
        text += f" a shot, {_relative(row)} fewer failures than the plain backend"
    return f"{text}, on {row.holdout_shots} fresh shots"


def _relative(row: HistoryRow) -> str:
    if row.relative_holdout is None:
        return ""
    inside = _interval(row.relative_holdout_low, row.relative_holdout_high, 100)
    return f"{100 * row.relative_holdout:.1f}% {inside}".strip()


def _interval(low: float | None, high: float | None, scale: float) -> str:
    if low is None or high is None:
        return ""
    style = "+.2e" if scale == 1 else ".1f"
    return f"[{scale * low:{style}}, {scale * high:{style}}]"


def _panel(row: HistoryRow) -> str:
    """Who else decoded the same shots, and whether the interval of the difference lies above 0."""
    if not row.beats_panel:
        return ""
    words = {True: "better than", False: "not shown to be better than"}
    return "; on them " + ", ".join(f"{words[won]} {name}" for name, won in row.beats_panel.items())


def _meaning(row: HistoryRow) -> str:
    if row.status == "branch_manually_deleted":
        return "A person deleted the branch; what was measured stays on record, and the commit stays pinned."
    if row.status == "orphaned_branch":
        return "Nothing was concluded from this attempt; its number and files are kept."
    if row.status == "compose_conflict":
        return "These parents cannot be joined as they are; the set is not tried again."
    if row.status == "compile_error":
        return "Of this config no decoder can be built within the env's limits."
    if row.status != "ok":
        return "No decoder came of this attempt; of its idea nothing was learned."
    if row.verify_verdict == "SUSPICIOUS" and (row.delta_holdout_low or 0.0) > 0:
        return (
            "The interval lies above 0, but the run tests many candidates and an interval counts them not: what the "
            "judge needs for a claim was not there. The gain may be real; it is not claimed, and stays off the front."
        )
    return {
        "VERIFIED": f"The gain over the plain backend holds on shots that nobody could have seen.{_unbeaten(row)}",
        "SUSPICIOUS": "What the judge needs for a claim was not there: it stays off the front, and nothing is claimed.",
        "FAILED": "The judge found harm or a broken guard: it does not enter the front.",
        None: "No evidence was sought: the val shots gave no reason to."
        if row.verdict == "ignore"
        else "It was nominated and not judged: nothing is claimed.",
    }[row.verify_verdict]


def _unbeaten(row: HistoryRow) -> str:
    """Whom it was not shown to be better than: the first thing a reader wants to know of a gain."""
    names = [name for name, won in (row.beats_panel or {}).items() if not won]
    return f" Over {', '.join(names)} none was shown." if names else ""


def _flat(text: str) -> str:
    """Foreign words on one line, so that they cannot open a section of their own; no full stop at the end."""
    return " ".join(text.split()).rstrip(".")
