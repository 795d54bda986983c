"""The Analyst without a language model: nominates by the paired interval on val shots, and says it in one paragraph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoqec.contracts.base import canonical_json
from autoqec.contracts.messages import AnalystResponse, parse_response
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import PairedCounts, PairedEffect


def analyse(view: dict[str, Any]) -> AnalystResponse:
    """view: {metrics_path, hypothesis} (`RunMemory.l3_for_analyst`). candidate: the interval of delta lies above 0."""
    metrics = RoundMetrics.read(json.loads(Path(view["metrics_path"]).read_bytes()), location=view["metrics_path"])
    response = _failed(metrics) if metrics.status != "ok" else _measured(metrics)
    return parse_response(AnalystResponse, canonical_json(response))


def _failed(metrics: RoundMetrics) -> dict[str, str]:
    reason = " ".join((metrics.status_reason or "").split())
    return {
        "verdict": "ignore",
        "summary_1line": f"{metrics.status}: {reason}"[:400],
        "analysis": f"The round ended as {metrics.status}, so nothing was measured: {reason}"[:4000],
        "next_hypothesis_seed": f"Keep away from what ended as {metrics.status}: {reason}"[:400],
    }


def _measured(metrics: RoundMetrics) -> dict[str, str]:
    effect = _effect(metrics)
    return {
        "verdict": "candidate" if effect is not None and effect.delta_low > 0 else "ignore",
        "summary_1line": _summary(metrics, effect),
        "analysis": " ".join(part for part in (_figures(metrics, effect), _parent(metrics), _meaning(effect)) if part),
        "next_hypothesis_seed": _next(metrics, effect),
    }


def _effect(metrics: RoundMetrics) -> PairedEffect | None:
    """Against the plain backend on the round's own val shots; None where the counts are not all there."""
    from autoqec.qec import stats

    counts = (
        metrics.val_shots,
        metrics.val_errors_plain,
        metrics.val_errors_predecoder,
        metrics.val_fixed,
        metrics.val_broken,
    )
    if any(count is None for count in counts) or not metrics.val_shots:
        return None
    names = ("shots", "errors_reference", "errors_candidate", "fixed", "broken")
    return stats.paired_effect(PairedCounts(**dict(zip(names, counts, strict=True))))


def _summary(metrics: RoundMetrics, effect: PairedEffect | None) -> str:
    if effect is None:
        return f"delta {metrics.delta_ler:+.2e} per shot, without counts to judge it by"
    share = "" if effect.relative is None else f", {100 * effect.relative:+.1f}% of plain failures"
    return (
        f"delta {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}] per shot{share}, "
        f"{effect.counts.shots} val shots, {metrics.n_params} parameters"
    )


def _figures(metrics: RoundMetrics, effect: PairedEffect | None) -> str:
    if effect is None:
        return f"The Runner reports delta {metrics.delta_ler:+.3e} per shot and no paired counts."
    counts = effect.counts
    relative = ""
    if effect.relative is not None and effect.relative_low is not None and effect.relative_high is not None:
        relative = (
            f", a relative reduction of {100 * effect.relative:.1f}% "
            f"[{100 * effect.relative_low:.1f}, {100 * effect.relative_high:.1f}]"
        )
    return (
        f"On {counts.shots} val shots the plain backend erred {counts.errors_reference} times and the decoder "
        f"{counts.errors_candidate} times: {counts.fixed} shots fixed, {counts.broken} broken, so "
        f"delta = {effect.delta:+.3e} per shot, paired 95% interval "
        f"[{effect.delta_low:+.3e}, {effect.delta_high:+.3e}]{relative}. "
        f"It costs {metrics.n_params} parameters and {metrics.flops_per_syndrome} FLOPs a shot."
    )


def _parent(metrics: RoundMetrics) -> str:
    if metrics.delta_vs_parent in (None, metrics.delta_ler):  # the same figure: it stands on the baseline
        return ""
    return f"Against its parent on the same val shots: {metrics.delta_vs_parent:+.3e} per shot (guidance, no interval)."


def _meaning(effect: PairedEffect | None) -> str:
    guidance = "This is guidance; the judge decides."
    if effect is None:
        return guidance
    if effect.delta_low > 0:
        return f"The interval lies above 0, so the round is nominated. {guidance}"
    if effect.delta_high < 0:
        return f"The interval lies below 0: it does harm. {guidance}"
    return f"The interval holds 0, so nothing was shown; {_detectable(effect)}. {guidance}"


def _detectable(effect: PairedEffect) -> str:
    """What this many shots could have shown at all."""
    from autoqec.qec.stats import detectable_effect

    counts = effect.counts
    least = detectable_effect(counts.shots, counts.errors_reference / counts.shots)
    return (
        f"{counts.shots} shots would have shown a reduction of about {100 * least:.0f}% or more four times in five, "
        "so smaller effects stay open"
    )


def _next(metrics: RoundMetrics, effect: PairedEffect | None) -> str:
    if effect is None or effect.delta_high < 0:
        return "Leave this region"
    if effect.delta_low > 0:
        return "Build on this branch: move one or two keys, or compose it with another verified one"
    return f"Too weak to see at {effect.counts.shots} shots: train longer, or change the architecture"
