"""Derive verdict, reasons and claim from the evidence. Pure functions: no shots, no files."""

from __future__ import annotations

from collections.abc import Sequence

from autoqec.contracts.env import PREDICTED, EnvSpec
from autoqec.contracts.verdict import (
    BaselineResult,
    Guard,
    MemberResult,
    PairedEffect,
    RecordedEvidence,
    SequentialTest,
    Verdict,
)
from autoqec.qec.stats import detectable_effect

# These guards show harm or missing answers; every other guard shows that the figures cannot be trusted.
FAILING_GUARDS = frozenset({"complete", "other_points", "other_members"})


def decide(
    env: EnvSpec,
    test: SequentialTest | None,
    effect: PairedEffect | None,
    guards: tuple[Guard, ...],
    baselines: Sequence[BaselineResult] = (),
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict and its reasons.

    FAILED: evidence of harm, or no usable answers. SUSPICIOUS: another guard tripped. VERIFIED: evidence of a gain
    above the env's minimum, a lower bound of the measured gain at or above it, and all guards passed. INCONCLUSIVE:
    none of these.

    Args:
        env: Names the minimum gain and the baselines.
        test: The sequential test; None if it was not reached.
        effect: Second draw, against the baseline decoder; None if it was not reached.
        guards: All guards.
        baselines: All baselines on the effect draw; those stronger than the baseline decoder are named.
    """
    tripped = [guard for guard in guards if not guard.passed]
    lines = [f"guard {guard.name}: {guard.evidence}" for guard in tripped]
    harm = test is not None and test.stopped_by == "harm"
    if test is not None and harm:
        lines.insert(0, f"sequential test: harm, e-value {test.e_value_harm:.3g} against the candidate")
    if lines:
        failed = harm or any(guard.name in FAILING_GUARDS for guard in tripped)
        return "FAILED" if failed else "SUSPICIOUS", tuple(lines)
    unmet = _unmet_conditions(env, test, effect)
    if unmet:
        return "INCONCLUSIVE", unmet
    assert test is not None and effect is not None and effect.relative_low is not None
    return "VERIFIED", (
        f"sequential test: e-value {test.e_value:.3g} reached {test.threshold:.3g} after {test.counts.shots} shots",
        f"effect: at least {100 * effect.relative_low:.1f}% fewer errors (needed {_required_gain(env)})",
        f"all {len(guards)} guards passed",
        *(_weakness(env, baseline, baselines) for baseline in stronger_baselines(env, baselines)),
    )


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
    tripped = [guard for guard in guards if not guard.passed]
    lines = [f"guard {guard.name}: {guard.evidence}" for guard in tripped]
    harm = test is not None and test.stopped_by == "harm"
    if test is not None and harm:
        lines.insert(0, f"block test: harm, e-value {test.e_value_harm:.3g} against the candidate")
    if lines:
        failed = harm or any(guard.name in FAILING_GUARDS for guard in tripped)
        return "FAILED" if failed else "SUSPICIOUS", (*lines, left)
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
    gain = f"effect: at least {low:.1f}% fewer errors than each baseline (needed {_required_gain(env)})"
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


def stronger_baselines(env: EnvSpec, baselines: Sequence[BaselineResult]) -> list[BaselineResult]:
    """Return the baselines whose error rate lies significantly below that of the env's baseline decoder."""
    plain = [baseline.rate for baseline in baselines if baseline.name == env.plain]
    return [baseline for baseline in baselines if plain and baseline.rate.high < plain[0].low]


def _weakness(env: EnvSpec, stronger: BaselineResult, baselines: Sequence[BaselineResult]) -> str:
    plain = next(baseline.rate for baseline in baselines if baseline.name == env.plain)
    listed = "" if stronger.name in env.baselines else f" and is not among the env's baselines ({_listed(env)})"
    beaten = "beats it" if stronger.beats else "is not shown to beat it"
    fewer = 100 * (1 - stronger.rate.errors / plain.errors)
    return (
        f"weak baseline: {stronger.name} makes {fewer:.1f}% fewer errors than {env.plain} on the same shots{listed}; "
        f"the candidate {beaten}"
    )


def _listed(env: EnvSpec) -> str:
    return ", ".join(env.baselines) or "none"


def _unmet_conditions(env: EnvSpec, test: SequentialTest | None, effect: PairedEffect | None) -> tuple[str, ...]:
    unmet = []
    if test is None or test.stopped_by != "evidence":
        unmet.append(_no_evidence(test))
    if effect is None or effect.relative_low is None or not effect.counts.fixed:
        unmet.append("effect: no errors to compare, so no gain was measured")
    elif effect.relative_low < env.protocol.min_relative_gain or effect.relative_low <= 0:
        low = 100 * effect.relative_low
        unmet.append(
            f"effect: the gain's lower bound is {low:.1f}%, needed {_required_gain(env)}; {null_power(effect)}"
        )
    return tuple(unmet)


def _no_evidence(test: SequentialTest | None) -> str:
    if test is None:
        return "sequential test: not run"
    return (
        f"sequential test: stopped by {test.stopped_by} after {test.counts.shots} shots at e-value {test.e_value:.3g}, "
        f"needed {test.threshold:.3g} for a gain above {100 * test.min_relative_gain:g}%"
    )


def null_power(effect: PairedEffect) -> str:
    """Describe the smallest gain that this draw would have shown with a probability of 80%."""
    counts = effect.counts
    detectable = detectable_effect(counts.shots, counts.errors_reference / counts.shots)
    return (
        f"{counts.shots} shots with {counts.errors_reference} errors of the baseline decoder show a relative gain of "
        f"{100 * detectable:.1f}% or more with 80% power; smaller gains stay open"
    )


def _required_gain(env: EnvSpec) -> str:
    return f"{100 * env.protocol.min_relative_gain:g}%"


def claim(
    env: EnvSpec,
    verdict: Verdict,
    effect: PairedEffect | None,
    baselines: Sequence[BaselineResult] = (),
    members: Sequence[MemberResult] = (),
) -> str:
    """Return what the evidence supports: the gain, unbeaten baselines, and the family's other circuits."""
    circuit = f" (d={members[0].distance} r={members[0].rounds})" if members else ""
    where = f"on {env.name}{circuit}" + ("" if env.target is None else f" at p = {env.target:g}")
    if effect is None or effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return f"Nothing is claimed {where}: there is no measured gain."
    low, high = 100 * effect.relative_low, 100 * effect.relative_high
    figures = f"{100 * effect.relative:.1f}% [{low:.1f}, {high:.1f}] fewer logical errors per shot than {env.plain}"
    shots = f"95% interval, {effect.counts.shots:,} shots from seeds derived after the artifact was frozen"
    if verdict != "VERIFIED":
        return f"Nothing is claimed {where}: measured were {figures} alone ({shots}), verdict {verdict}."
    unbeaten = [baseline.name for baseline in stronger_baselines(env, baselines) if not baseline.beats]
    found = f"{where[0].upper()}{where[1:]}, {env.plain} with this predecoder makes {figures} alone ({shots})."
    if unbeaten:
        found += f" It is not shown to beat {', '.join(unbeaten)}, which makes fewer errors than {env.plain}."
    return found + _claim_of_members(members[1:])


def _claim_of_members(members: Sequence[MemberResult]) -> str:
    """Name the other circuits and p of a family for which the gain is claimed, and those for which it is not."""
    held, open_ = ([member for member in members if member.holds is holds] for holds in (True, False))
    gains = [
        f"{member} {100 * (gain.relative or 0):.1f}% [{100 * (gain.relative_low or 0):.1f}, "
        f"{100 * (gain.relative_high or 0):.1f}]"
        for member in held
        for gain in member.effects[:1]
    ]
    text = f" A gain is also claimed for {'; '.join(gains)} (intervals that hold together)." if held else ""
    return text + (f" It is not shown for {'; '.join(map(str, open_))}." if open_ else "")
