"""Derive verdict, reasons and claim from the evidence. Pure functions: no shots, no files."""

from __future__ import annotations

from collections.abc import Sequence

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.verdict import (
    BaselineResult,
    Guard,
    MemberResult,
    PairedEffect,
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
    if (refused := refusal("sequential test", test, guards)) is not None:
        return refused
    unmet = _unmet_conditions(env, test, effect)
    if unmet:
        return "INCONCLUSIVE", unmet
    assert test is not None and effect is not None and effect.relative_low is not None
    return "VERIFIED", (
        f"sequential test: e-value {test.e_value:.3g} reached {test.threshold:.3g} after {test.counts.shots} shots",
        f"effect: at least {100 * effect.relative_low:.1f}% fewer errors (needed {required_gain(env)})",
        f"all {len(guards)} guards passed",
        *(_weakness(env, baseline, baselines) for baseline in stronger_baselines(env, baselines)),
    )


def refusal(
    name: str, test: SequentialTest | None, guards: tuple[Guard, ...]
) -> tuple[Verdict, tuple[str, ...]] | None:
    """Return FAILED or SUSPICIOUS with the reasons if the test `name` shows harm or a guard tripped; None if not."""
    tripped = [guard for guard in guards if not guard.passed]
    lines = [f"guard {guard.name}: {guard.evidence}" for guard in tripped]
    harm = test is not None and test.stopped_by == "harm"
    if test is not None and harm:
        lines.insert(0, f"{name}: harm, e-value {test.e_value_harm:.3g} against the candidate")
    if not lines:
        return None
    failed = harm or any(guard.name in FAILING_GUARDS for guard in tripped)
    return "FAILED" if failed else "SUSPICIOUS", tuple(lines)


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
        unmet.append(f"effect: the gain's lower bound is {low:.1f}%, needed {required_gain(env)}; {null_power(effect)}")
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


def required_gain(env: EnvSpec) -> str:
    """Return the env's minimum gain in percent."""
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
