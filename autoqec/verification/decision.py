"""From evidence to a verdict, its reasons and its claim. Pure: no draw, no file."""

from __future__ import annotations

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.verdict import Guard, PairedEffect, SequentialTest, Verdict
from autoqec.qec.stats import detectable_effect


def decide(
    env: EnvSpec, test: SequentialTest | None, effect: PairedEffect | None, guards: tuple[Guard, ...]
) -> tuple[Verdict, tuple[str, ...]]:
    """VERIFIED: evidence, a lower bound of the relative gain at or above the env's, and every guard held.
    FAILED: evidence of harm, or a broken guard. SUSPICIOUS: neither."""
    broken = tuple(f"guard {guard.name}: {guard.evidence}" for guard in guards if not guard.passed)
    if test is not None and test.stopped_by == "harm":
        broken = (f"sequential test: harm, e-value {test.e_value_harm:.3g} against the candidate", *broken)
    if broken:
        return "FAILED", broken
    missing = _unmet_conditions(env, test, effect)
    if missing:
        return "SUSPICIOUS", missing
    assert test is not None and effect is not None and effect.relative_low is not None
    return "VERIFIED", (
        f"sequential test: e-value {test.e_value:.3g} reached {test.threshold:.3g} after {test.counts.shots} shots",
        f"effect: at least {100 * effect.relative_low:.1f}% fewer errors (needed {_required_gain(env)})",
        f"all {len(guards)} guards held",
    )


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
        f"needed {test.threshold:.3g}"
    )


def null_power(effect: PairedEffect) -> str:
    """What this draw could have shown at all."""
    counts = effect.counts
    detectable = detectable_effect(counts.shots, counts.errors_reference / counts.shots)
    return (
        f"{counts.shots} shots with {counts.errors_reference} plain errors show a relative gain of "
        f"{100 * detectable:.1f}% or more four times in five; smaller gains stay open"
    )


def _required_gain(env: EnvSpec) -> str:
    return f"{100 * env.protocol.min_relative_gain:g}%"


def claim(env: EnvSpec, verdict: Verdict, effect: PairedEffect | None) -> str:
    """One sentence that says what may be said, and no more."""
    where = f"on {env.name}" + ("" if env.target is None else f" at p = {env.target:g}")
    if effect is None or effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return f"Nothing is claimed {where}: there is no measured gain."
    low, high = 100 * effect.relative_low, 100 * effect.relative_high
    figures = f"{100 * effect.relative:.1f}% [{low:.1f}, {high:.1f}] fewer logical errors per shot than {env.plain}"
    shots = f"95% interval, {effect.counts.shots:,} shots from seeds drawn after the artifact was frozen"
    if verdict == "VERIFIED":
        return f"{where[0].upper()}{where[1:]}, {env.plain} with this predecoder makes {figures} alone ({shots})."
    return f"Nothing is claimed {where}: measured were {figures} alone ({shots}), which the judge does not accept."
