"""Derive verdict, reasons and claim from the evidence on sealed blocks. Pure functions: no shots, no files."""

from __future__ import annotations

from collections.abc import Sequence

from autoqec.contracts.env import PREDICTED, EnvSpec
from autoqec.contracts.verdict import (
    BaselineResult,
    Guard,
    PairedEffect,
    RecordedEvidence,
    SequentialTest,
    Verdict,
)
from autoqec.verification.decision import refusal, required_gain


def decide_recorded(
    env: EnvSpec,
    test: SequentialTest | None,
    effect: PairedEffect | None,
    guards: tuple[Guard, ...],
    spent: RecordedEvidence,
    baselines: Sequence[BaselineResult],
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on recorded shots and its reasons; see `decide`.

    Args:
        env: Names the minimum gain.
        test: The test with the smallest e-value of all baselines; None if it was not reached.
        effect: The gain over the strongest baseline on the same blocks.
        guards: All guards.
        spent: The blocks of the test, and those that are left.
        baselines: All baselines on the same blocks; the gain over each must be shown.
    """
    left = f"{spent.blocks_left} sealed blocks are left, enough for {spent.candidates_left} more candidates"
    if not spent.blocks:
        return "INCONCLUSIVE", (f"no evidence is left: all sealed blocks are spent, {left}; record more shots",)
    if (refused := refusal("block test", test, guards)) is not None:
        return refused[0], (*refused[1], left)
    if test is None or effect is None:
        return "INCONCLUSIVE", ("block test: not run", left)
    low = 100 * min(baseline.against.relative_low or 0.0 for baseline in baselines)
    figures = (
        f"block test: smallest e-value {test.e_value:.3g} of {test.threshold:.3g} needed, against "
        f"{len(spent.e_values)} baselines, after {spent.blocks} blocks of {spent.block_shots} shots"
    )
    if effect.counts.errors_reference == 0:
        return "INCONCLUSIVE", (figures, _without_errors(effect), left)
    if spent.blocks_too_short:
        correlation = f"correlation {spent.autocorrelation:.2f}" if spent.autocorrelation is not None else "correlated"
        return "INCONCLUSIVE", (figures, f"successive blocks are correlated ({correlation}): blocks too short", left)
    gain = f"effect: at least {low:.1f}% fewer errors than each baseline (needed {required_gain(env)})"
    if test.stopped_by != "evidence" or low < 100 * env.protocol.min_relative_gain or low <= 0:
        return "INCONCLUSIVE", (figures, gain, left)
    return "VERIFIED", (figures, gain, f"all {len(guards)} guards passed", left)


def claim_recorded(env: EnvSpec, verdict: Verdict, effect: PairedEffect | None, spent: RecordedEvidence) -> str:
    """Return the statement that the evidence on recorded shots supports, in one sentence."""
    where = f"the recorded shots of {env.name}"
    if effect is not None and effect.counts.errors_reference == 0:
        return f"Nothing is claimed on {where}: {_without_errors(effect)}."
    if effect is None or effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return f"Nothing is claimed on {where}: there is no measured gain."
    low, high = 100 * effect.relative_low, 100 * effect.relative_high
    figures = (
        f"{100 * effect.relative:.1f}% [{low:.1f}, {high:.1f}] fewer logical errors per shot than {effect.reference}"
    )
    shots = f"95% interval under drift, {effect.counts.shots:,} sealed shots in {spent.blocks} blocks"
    if verdict != "VERIFIED":
        return f"Nothing is claimed on {where}: measured were {figures} ({shots}), verdict {verdict}."
    return f"On {where}, {env.plain} with this predecoder makes {figures}, the strongest baseline ({shots})."


def _without_errors(effect: PairedEffect) -> str:
    """Return why there is no gain over the reference of an effect, which made no error."""
    predicted = effect.reference.startswith(PREDICTED)
    remedy = "its predictions may be the recorded flips" if predicted else "record more shots"
    return (
        f"{effect.reference} made no errors in {effect.counts.shots:,} sealed shots, so that a reduction of its errors "
        f"is undefined; {remedy}"
    )
