"""The rule-based Analyst: nominates a round by the paired interval on its validation shots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoqec.contracts.base import canonical_json
from autoqec.contracts.messages import AnalystResponse, parse_response
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import PairedEffect
from autoqec.qec.stats import validation_effect
from autoqec.store.round_files import read_metrics

if TYPE_CHECKING:
    from autoqec.contracts.views import AnalystView


def analyse(view: AnalystView) -> AnalystResponse:
    """Nominate a round whose 95% interval of delta lies above 0.

    Args:
        view: The measured round, as from `RunMemory.l3_for_analyst`.
    """
    metrics = read_metrics(view.metrics_path)
    response = _of_failure(metrics) if metrics.status != "ok" else _of_measurement(metrics)
    return parse_response(AnalystResponse, canonical_json(response))


def describe_measurement(metrics: RoundMetrics) -> str:
    """Return the measured figures of a round that ended ok, in one or two sentences."""
    return _figures(metrics, validation_effect(metrics))


def _of_failure(metrics: RoundMetrics) -> dict[str, str]:
    reason = " ".join((metrics.status_reason or "").split())
    return {
        "verdict": "ignore",
        "summary_1line": f"{metrics.status}: {reason}"[:400],
        "analysis": f"The round ended as {metrics.status}, so nothing was measured: {reason}"[:4000],
        "next_hypothesis_seed": f"Avoid what ended as {metrics.status}: {reason}"[:400],
    }


def _of_measurement(metrics: RoundMetrics) -> dict[str, str]:
    effect = validation_effect(metrics)
    parts = (_figures(metrics, effect), _compared_with_parent(metrics), _conclusion(effect))
    return {
        "verdict": "candidate" if effect is not None and effect.delta_low > 0 else "ignore",
        "summary_1line": _summary(metrics, effect),
        "analysis": " ".join(part for part in parts if part),
        "next_hypothesis_seed": _advice(effect),
    }


def _summary(metrics: RoundMetrics, effect: PairedEffect | None) -> str:
    if effect is None:
        return "not measured" if metrics.delta_ler is None else f"delta {metrics.delta_ler:+.2e} per shot, no counts"
    share = "" if effect.relative is None else f", {100 * effect.relative:+.1f}% of baseline failures"
    return (
        f"delta {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}] per shot{share}, "
        f"{effect.counts.shots} validation shots, {metrics.n_params} parameters"
    )


def _figures(metrics: RoundMetrics, effect: PairedEffect | None) -> str:
    if effect is None:
        if metrics.delta_ler is None:
            return "The Runner reports no difference and no paired counts."
        return f"The Runner reports delta {metrics.delta_ler:+.3e} per shot and no paired counts."
    counts = effect.counts
    relative = ""
    if effect.relative is not None and effect.relative_low is not None and effect.relative_high is not None:
        relative = (
            f", a relative reduction of {100 * effect.relative:.1f}% "
            f"[{100 * effect.relative_low:.1f}, {100 * effect.relative_high:.1f}]"
        )
    return (
        f"On {counts.shots} validation shots the inner decoder alone failed {counts.errors_reference} times and with "
        f"the predecoder {counts.errors_candidate} times: {counts.fixed} shots fixed, {counts.broken} broken, so "
        f"delta = {effect.delta:+.3e} per shot, paired 95% interval "
        f"[{effect.delta_low:+.3e}, {effect.delta_high:+.3e}]{relative}. "
        f"It costs {metrics.n_params} parameters and {metrics.flops_per_syndrome} FLOPs per shot."
    )


def _compared_with_parent(metrics: RoundMetrics) -> str:
    if metrics.delta_vs_parent in (None, metrics.delta_ler):  # the same figure: the parent is the baseline
        return ""
    return f"Against its parent on the same validation shots: {metrics.delta_vs_parent:+.3e} per shot (no interval)."


def _conclusion(effect: PairedEffect | None) -> str:
    guidance = "Validation figures are guidance; the verifier decides."
    if effect is None:
        return guidance
    if effect.delta_low > 0:
        return f"The interval lies above 0, so the round is nominated. {guidance}"
    if effect.delta_high < 0:
        return f"The interval lies below 0: the predecoder is worse. {guidance}"
    return f"The interval contains 0, so the result is inconclusive; {_detectable(effect)}. {guidance}"


def _detectable(effect: PairedEffect) -> str:
    """Return the effect that this number of shots detects."""
    from autoqec.qec.stats import detectable_effect

    counts = effect.counts
    least = detectable_effect(counts.shots, counts.errors_reference / counts.shots)
    return f"{counts.shots} shots detect a reduction of about {100 * least:.0f}% or more with a probability of 80%"


def _advice(effect: PairedEffect | None) -> str:
    if effect is None or effect.delta_high < 0:
        return "Leave this region"
    if effect.delta_low > 0:
        return "Build on this branch: change one or two keys, or compose it with another verified one"
    return f"Inconclusive at {effect.counts.shots} shots: train longer, or change the architecture"
