"""Everything at the run root that can be rebuilt: pure functions of run.json and history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from autoqec.contracts.front import ParetoEntry, non_dominated, non_dominated_points
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.orchestration.attempts import Standing, is_finished


def verified_front(standing: Sequence[Standing]) -> list[ParetoEntry]:
    """Every VERIFIED, non-dominated round, best first. A deleted branch stays: its commit is pinned."""
    return non_dominated(_entry(one) for one in standing if one.row.verify_verdict == "VERIFIED")


def _entry(one: Standing) -> ParetoEntry:
    row = one.row
    flops, size = row.judge_flops_per_syndrome, row.judge_n_params
    return ParetoEntry.model_validate(
        {
            "round_attempt_id": one.attempt_id,
            "commit_sha": row.commit_sha,
            "branch": row.branch,
            "delta_vs_baseline_holdout": row.delta_vs_baseline_holdout,
            "paired_eval_bundle_id": row.paired_eval_bundle_id,
            "flops_per_syndrome": row.flops_per_syndrome if flops is None else flops,
            "n_params": row.n_params if size is None else size,
            "verdict": "VERIFIED",
            "fork_from": row.fork_from,
            "fork_from_canonical": row.fork_from_canonical,
            "compose_mode": row.compose_mode,
        }
    )


def candidate_front(standing: Sequence[Standing]) -> list[dict[str, Any]]:
    """Nominated rounds that are not verified and that none of their kind dominates, by the Runner's own figures."""
    rows = [
        one.row
        for one in standing
        if one.row.verdict == "candidate" and one.row.verify_verdict != "VERIFIED" and one.row.status == "ok"
    ]
    points = [(row.delta_ler or 0.0, -float(row.flops_per_syndrome or 0), -float(row.n_params or 0)) for row in rows]
    kept = [row for row, keep in zip(rows, non_dominated_points(points), strict=True) if keep]
    return [
        {
            "round": row.round,
            "delta_ler": row.delta_ler,
            "flops_per_syndrome": row.flops_per_syndrome,
            "n_params": row.n_params,
            "checkpoint_path": row.checkpoint_path,
            "verify_verdict": row.verify_verdict,
        }
        for row in sorted(kept, key=lambda row: (-(row.delta_ler or 0.0), row.round))
    ]


def log(info: RunInfo, standing: Sequence[Standing], sections: Sequence[str]) -> str:
    """log.md: a summary that is true of all that follows, then the `section` of every row."""
    head = f"# Run {info.run_id}\n\nEnv `{info.env_name}`, profile {info.profile}, seed {info.seed}, "
    head += f"ideator {info.ideator}, baseline {info.baseline_sha[:12]}.\n\n"
    return head + _summary(standing) + "".join(sections)


def _summary(standing: Sequence[Standing]) -> str:
    finished = [one.row for one in standing if is_finished(one.row) or one.row.refers_to_attempt]
    verdicts = Counter(row.verify_verdict for row in finished if row.verify_verdict)
    failed = Counter(row.status for row in finished if row.status != "ok")
    lost = sum(one.row.status == "orphaned_branch" for one in standing)
    parts = [
        f"{len(finished)} rounds ended, {sum(row.verdict == 'candidate' for row in finished)} nominated; "
        f"of these {verdicts['VERIFIED']} VERIFIED, {verdicts['SUSPICIOUS']} SUSPICIOUS, {verdicts['FAILED']} FAILED."
    ]
    if failed:
        parts.append("Without a result: " + ", ".join(f"{n} {status}" for status, n in sorted(failed.items())) + ".")
    if lost:
        parts.append(f"Lost to a crash and closed by recovery: {lost}.")
    front = verified_front(standing)
    if not front:
        parts.append("No decoder is verified yet.")
        return "**Summary.** " + " ".join(parts) + "\n\n"
    best = next(one.row for one in standing if one.attempt_id == front[0].round_attempt_id)
    parts.append(f"Best verified: round {best.round} (`{front[0].branch}`), {_holdout(best)}{_panel(best)}.")
    table = "| round | branch | Δ_LER, fresh shots | FLOPs | parameters |\n|---|---|---|---|---|\n"
    rounds = {one.attempt_id: one.row.round for one in standing}
    for entry in front:
        table += (
            f"| {rounds[entry.round_attempt_id]} | `{entry.branch}` | {entry.delta_vs_baseline_holdout:+.3e} "
            f"| {entry.flops_per_syndrome} | {entry.n_params} |\n"
        )
    return "**Summary.** " + " ".join(parts) + f"\n\nThe front:\n\n{table}\n"


def section(row: HistoryRow) -> str:
    """One round: what was tried, what happened in figures, what it means, what next."""
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
