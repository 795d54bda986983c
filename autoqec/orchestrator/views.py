"""Builds log.md and the list of candidates from run.json and history; pure functions.

Text of models and branches is untrusted: it is shown on one line, with control characters and markup escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from autoqec.contracts.history import HistoryRow, RunInfo, Verification
from autoqec.contracts.verdict import Verdict, comparison_terms
from autoqec.ideators.analyst import describe_measurement
from autoqec.reporting.text import code_span, markdown, member_line
from autoqec.store.run_state import Draft, RoundState, Totals

_VERDICTS = get_args(Verdict)


def candidate(row: HistoryRow) -> dict[str, Any]:
    """Return the entry of candidate_pareto.json for a nominated round that is not verified."""
    return {
        "round": row.round,
        "delta_ler": row.delta_ler,
        "flops_per_syndrome": row.flops_per_syndrome,
        "n_params": row.n_params,
        "checkpoint_path": row.checkpoint_path,
        "verify_verdict": row.verify_verdict,
    }


def log_head(info: RunInfo) -> str:
    """Return the beginning of log.md; one `section` per row follows."""
    scale = "" if info.scale == 1 else f" × {info.scale:g}"
    head = f"# Run {info.run_id}\n\nEnv `{code_span(info.env_name)}`, profile {info.profile}{scale}, seed {info.seed}, "
    head += f"ideator {markdown(info.ideator)}, baseline {info.baseline_sha[:12]}.\n\n"
    pinned = ""
    if info.pins:
        from autoqec.contracts.pins import format_pins  # with the DSL, which most runs do not need here

        pinned = f"Pinned in every proposal: {markdown(format_pins(info.pins))}.\n\n"
    guidance = "Val shots guide the search, which reuses them in every round: results on them are no evidence. "
    terms = comparison_terms(sealed=info.sealed_shots)
    compared = f", against the {terms.reference}" * info.sealed_shots
    return f"{head}{pinned}{guidance}Verification uses {terms.shots}{compared}. Intervals are 95%.\n\n"


def log(info: RunInfo, rows: Iterable[HistoryRow]) -> str:
    """Return log.md: the head, then one section per row."""
    draft, sections = Draft(), []
    for row in rows:
        draft.take(row)
        sections.append(section(row, draft))
    return log_head(info) + "".join(sections)


def section(row: HistoryRow, state: Draft) -> str:
    """Return the section of one row: hypothesis, result, times, verdict, meaning, and the state of the run after it."""
    recorded = row.verify_verdict or ("not nominated" if row.status == "ok" else row.status)
    title = f"## Round {row.round} · {markdown(row.branch or 'no branch')} · {recorded}\n\n"
    origin = "the baseline" if row.fork_from == "baseline" else f"`{code_span(row.fork_from_canonical)}`"
    if row.compose_mode:
        origin += f", composed ({row.compose_mode})"
    measured = describe_measurement(row) if row.status == "ok" else ""
    parts = [
        ("Hypothesis", f"{_clause(row.hypothesis)}. Forked from {origin}."),
        ("Result", measured if row.status == "ok" else _without_result(row)),
        ("Times", f"{row.timing.describe()}." if row.started_at is not None else ""),
        ("Verification", _verification(found) if (found := row.verification) else ""),
        ("Single shots", _single_shots(row.single_shot_failure)),
        ("Family", _family(row)),
        ("Meaning", _meaning(row, found)),
        ("Analyst (opinion)", f"“{opinion}”" if (opinion := _opinion(row, measured)) else ""),
        ("Next hypothesis", f"{_clause(row.next_hypothesis_seed)}." if row.next_hypothesis_seed else ""),
        ("So far", _so_far(state.totals, state.rounds)),
    ]
    return title + "\n".join(f"**{name}.** {text}\n" for name, text in parts if text) + "\n"


def _so_far(totals: Totals, rounds: Mapping[str, RoundState]) -> str:
    """Return the state of the run when a row was written."""
    ended = totals.ended
    verdicts = [f"{totals.verdicts[name]} {name}" for name in _VERDICTS if totals.verdicts.get(name)]
    parts = [f"{ended} round{'s' * (ended != 1)} finished, {totals.nominated} nominated"]
    parts[0] += f"; verdicts: {', '.join(verdicts)}." if verdicts else "."
    failed = [(status, number) for status, number in sorted(totals.failed.items()) if number]
    if failed:
        parts.append("Without a result: " + ", ".join(f"{number} {status}" for status, number in failed) + ".")
    if totals.lost:
        parts.append(f"Aborted by a crash and closed by recovery: {totals.lost}.")
    if totals.best is None:
        return " ".join([*parts, "No decoder is verified yet."])
    best = rounds[totals.best.round_attempt_id].row
    gain = f", {_gain(found)}" if (found := best.verification) else ""
    return " ".join([*parts, f"Best verified: round {best.round} (`{code_span(totals.best.branch)}`){gain}."])


def _without_result(row: HistoryRow) -> str:
    if row.status == "compose_conflict":
        return f"The branches do not merge; both changed {markdown(', '.join(row.conflicting_files or ()))}."
    return f"Ended without a result, {row.status}: {_clause(row.status_reason or '')}."


def _opinion(row: HistoryRow, measured: str) -> str:
    """Return the text of the Analyst beyond `measured`, the description of the figures; "" without any."""
    if row.status != "ok":
        return ""
    text = " ".join((row.analysis or row.summary_1line or "").split())
    return _clause(text.removeprefix(measured))


def _verification(found: Verification) -> str:
    text = f"{found.verdict}: {_gain(found)}{_baselines(found)}."
    if found.composition:
        text += f" Compared with its parents on another draw: {found.composition}."
    reasons = _clause("; ".join(found.reasons))
    return f"{text} Reasons: {reasons}." if reasons else text


def _single_shots(failure: str | None) -> str:
    return "" if failure is None else f"Decoding failed, although batches were decoded: {_clause(failure)}."


def _family(row: HistoryRow) -> str:
    """Results on the circuits of a family: counts on val shots, gains on fresh shots and whether they are claimed."""
    counts = [
        f"d={member.distance} r={member.rounds} {member.counts.errors_reference} → {member.counts.errors_candidate}"
        for member in row.val_members or ()
    ]
    found = f"Errors on {row.val_shots} val shots each: {', '.join(counts)}." if counts else ""
    gains = "; ".join(map(member_line, row.holdout_members or ()))
    together = " Intervals of all circuits and attempts hold together."
    return f"{found} Fresh shots: {gains}.{together}".strip() if gains else found


def _gain(found: Verification) -> str:
    if found.gain is None:
        return "no gain was measured"
    text = f"Δ_LER {found.gain.value:+.2e} {_interval(found.gain.low, found.gain.high, 1)}"
    text = f"{text.strip()} per shot"
    if found.relative_gain is not None:
        inside = _interval(found.relative_gain.low, found.relative_gain.high, 100)
        relative = f"{100 * found.relative_gain.value:.1f}% {inside}".strip()
        text += f", {relative} fewer failures than the {found.terms.reference}"
    if found.shots:
        text += f", on {found.shots} {found.terms.shots}"
    if found.simultaneous is not None:
        text += f" ({_interval(*found.simultaneous, 1)} for all attempts of the run together)"
    return text


def _interval(low: float | None, high: float | None, scale: float) -> str:
    if low is None or high is None:
        return ""
    style = "+.2e" if scale == 1 else ".1f"
    return f"[{scale * low:{style}}, {scale * high:{style}}]"


def _baselines(found: Verification) -> str:
    """Comparison with every baseline on the same shots."""
    if not found.baselines:
        return ""
    labels = {True: "better than", False: "not shown to be better than"}
    compared = [f"{labels[beats]} {markdown(name)}" for name, beats in found.baselines.items()]
    return f"; on the same shots {', '.join(compared)}"


_STATUS_MEANINGS = {
    "branch_manually_deleted": "The branch was deleted by hand. The results are kept, and its commit stays reachable.",
    "orphaned_branch": "The attempt was interrupted. Nothing is concluded from it; its number and files are kept.",
    "compose_conflict": "These parents cannot be merged; the same set is not proposed again.",
    "compile_error": "No decoder can be built from this config within the limits of the env.",
}
_VERDICT_MEANINGS = {
    "INCONCLUSIVE": "No improvement is claimed: there was no evidence of a sufficient gain within the budget.",
    "SUSPICIOUS": "No improvement is claimed: a guard tripped, so the measured gain cannot be trusted.",
    "FAILED": "The decoder is worse than the baseline decoder, or gave no usable answers.",
}


def _meaning(row: HistoryRow, found: Verification | None) -> str:
    if row.status != "ok":
        return _STATUS_MEANINGS.get(row.status, "No decoder was produced, so nothing was learned about the hypothesis.")
    if found is None:
        if row.verdict == "candidate":
            return "It was nominated but not verified."
        return "It was not nominated: the val shots gave no reason to."
    if found.verdict == "VERIFIED":
        unbeaten = ", ".join(map(markdown, found.unbeaten))
        return f"The gain over the {found.terms.reference} holds on {found.terms.shots}." + (
            f" No gain over {unbeaten} was shown." if unbeaten else ""
        )
    if found.verdict == "INCONCLUSIVE" and found.gain is not None and (found.gain.low or 0.0) > 0:
        return (
            "The 95% interval excludes zero, but it is not corrected for the number of candidates tested. The "
            "corrected test was inconclusive, so no improvement is claimed."
        )
    return _VERDICT_MEANINGS[found.verdict]


def _clause(text: str) -> str:
    """Untrusted text as the inside of a sentence: one line, no markup, no full stop at the end."""
    return markdown(" ".join(text.split()).rstrip("."))
