"""Everything at the run root that can be rebuilt: pure functions of run.json and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoqec.contracts.front import ParetoEntry, non_dominated
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.orchestration.attempts import Standing
from autoqec.orchestration.tally import Tally, entry_of


def verified_front(standing: Sequence[Standing]) -> list[ParetoEntry]:
    """Every VERIFIED, non-dominated round, best first. A deleted branch stays: its commit is pinned."""
    return non_dominated(entry_of(one) for one in standing if one.row.verify_verdict == "VERIFIED")


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
    """The beginning of log.md; the `section` of every row follows, and nothing before a section ever changes."""
    head = f"# Run {info.run_id}\n\nEnv `{info.env_name}`, profile {info.profile}, seed {info.seed}, "
    return head + f"ideator {info.ideator}, baseline {info.baseline_sha[:12]}.\n\n"


def _so_far(tally: Tally) -> str:
    """The run as it stood when a row was written."""
    counts, verdicts = tally.counts, tally.verdicts
    parts = [
        f"{counts['ended']} rounds ended, {counts['nominated']} nominated; of these {verdicts['VERIFIED']} VERIFIED, "
        f"{verdicts['SUSPICIOUS']} SUSPICIOUS, {verdicts['FAILED']} FAILED."
    ]
    failed = [(status, number) for status, number in sorted(tally.failed.items()) if number]
    if failed:
        parts.append("Without a result: " + ", ".join(f"{number} {status}" for status, number in failed) + ".")
    if counts["lost"]:
        parts.append(f"Lost to a crash and closed by recovery: {counts['lost']}.")
    if tally.best is None:
        return " ".join([*parts, "No decoder is verified yet."])
    best = tally.standing[tally.best.round_attempt_id].row
    return " ".join([*parts, f"Best verified: round {best.round} (`{tally.best.branch}`), {_holdout(best)}."])


def section(row: HistoryRow, tally: Tally) -> str:
    """One row: what was tried, what happened in figures, what it means, what next, and the run so far, with it."""
    what = row.verify_verdict or ("not nominated" if row.status == "ok" else row.status)
    title = f"## Round {row.round} · {row.branch or 'no branch'} · {what}\n\n"
    origin = "the baseline" if row.fork_from == "baseline" else f"`{row.fork_from_canonical}`"
    if row.compose_mode:
        origin += f", composed ({row.compose_mode})"
    parts = [("Hypothesis", f"{_flat(row.hypothesis)}. From {origin}."), ("What happened", _happened(row))]
    if row.verify_verdict:
        parts.append(("The judge", _judge(row)))
    parts.append(("What it means", _meaning(row)))
    if row.next_hypothesis_seed:
        parts.append(("Next", f"{_flat(row.next_hypothesis_seed)}."))
    parts.append(("So far", _so_far(tally)))
    return title + "\n".join(f"**{name}.** {text.replace('..', '.')}\n" for name, text in parts) + "\n"


def _happened(row: HistoryRow) -> str:
    if row.status == "compose_conflict":
        return f"The branches do not merge; both sides changed {', '.join(row.conflicting_files or ())}."
    if row.status == "ok" and row.analysis:
        return _flat(row.analysis)
    return f"{row.status}: {_flat(row.status_reason or '')}."


def _judge(row: HistoryRow) -> str:
    said = f"{row.verify_verdict}: {_holdout(row)}{_panel(row)}."
    reasons = _flat("; ".join(row.verify_reasons))
    return f"{said} {reasons}." if reasons else said


def _holdout(row: HistoryRow) -> str:
    if row.delta_vs_baseline_holdout is None:
        return "no effect was published"
    text = (
        f"Δ_LER {row.delta_vs_baseline_holdout:+.3e} {_interval(row.delta_holdout_low, row.delta_holdout_high, 1, 'e')}"
    )
    if row.relative_holdout is not None:
        relative = _interval(row.relative_holdout_low, row.relative_holdout_high, 100, "f")
        text += f", {100 * row.relative_holdout:.1f}% {relative} of the plain backend's failures avoided"
    return f"{text}, on {row.holdout_shots} fresh shots"


def _interval(low: float | None, high: float | None, scale: float, style: str) -> str:
    if low is None or high is None:
        return ""
    digits = ".3e" if style == "e" else ".1f"
    return f"[{scale * low:{digits}}, {scale * high:{digits}}]"


def _panel(row: HistoryRow) -> str:
    if not row.beats_panel:
        return ""
    return "; " + ", ".join(f"{'beats' if won else 'does not beat'} {name}" for name, won in row.beats_panel.items())


def _meaning(row: HistoryRow) -> str:
    if row.status == "branch_manually_deleted":
        return "A person deleted the branch; what was measured stays on record, and the commit stays pinned."
    if row.status == "orphaned_branch":
        return "Nothing was concluded from this attempt; its number and files are kept."
    if row.status == "compose_conflict":
        return "These parents cannot be joined as they are; the set is not tried again."
    if row.status != "ok":
        return "This config gives no decoder within the limits; it is not tried again."
    return {
        "VERIFIED": "The gain over the plain backend holds on shots that nobody could have seen.",
        "SUSPICIOUS": "Neither gain nor harm was shown: it does not enter the front.",
        "FAILED": "The judge found harm or a broken guard: it does not enter the front.",
        None: "No evidence was sought: the val shots gave no reason to.",
    }[row.verify_verdict]


def _flat(text: str) -> str:
    """Foreign words on one line, so that they cannot open a section of their own; no full stop at the end."""
    return " ".join(text.split()).rstrip(".")
