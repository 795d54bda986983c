"""Guards: one function each. A guard that fails makes the verdict FAILED; its evidence says what was seen.

Thresholds of statistical guards are set so that an honest candidate trips one in about a million.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from autoqec.contracts.env import SEED_SPACE, EnvSpec
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import Cost, Guard, PairedCounts, PairedEffect
from autoqec.qec.problem import Problem
from autoqec.verification.sequential import log_e_value

FALSE_ALARM_RATE = 1e-6  # of a false alarm
LOG_ODDS_TOLERANCE = 1e-4  # nats, and relative; BLAS is not bit-stable between batch sizes
PREDICTION_TOLERANCE = 1e-5  # share that may differ: ties that rounding breaks
HARM_LEVEL = 1e-3  # level of the test for harm at another p
MAX_BYTES_PER_PARAM = 4  # bytes a number: wider ones could hold several
MAX_CODE_BYTES = 12 * 2**10  # bytes, compressed: some 40 kB of source. What is more is weights
WARMUP_CPU_S = 1.0
ENOUGH_ERRORS, SAME_ERRORS = 50, 0.01  # below 1% of its errors apart, a candidate is a baseline in disguise
# A shot may take BASE_US_PER_SHOT of CPU and a microsecond more for each MIN_FLOPS_PER_US counted. The slowest kind
# of net that we
# have (neural BP, all gathers and tiny tensors) does 260 FLOPs a microsecond; dense ones do 20,000 and more.
BASE_US_PER_SHOT, MIN_FLOPS_PER_US = 50.0, 50.0


def seed_bands(env: EnvSpec, seeds: list[int]) -> Guard:
    """Public bands are disjoint and below 2**32 (the contract), the judge's seeds distinct and above."""
    policy = env.seed_policy
    low = min(seeds, default=SEED_SPACE)
    passed = low >= SEED_SPACE and len(set(seeds)) == len(seeds)
    return Guard(
        name="seed_bands",
        passed=passed,
        evidence=f"train {_band(policy.train)}, val {_band(policy.val)}, holdout {_band(policy.holdout)} are disjoint; "
        f"{len(set(seeds))} distinct judge seeds of {len(seeds)}, all {'at or above' if passed else 'NOT above'} 2^32",
    )


def _band(band: tuple[int, int]) -> str:
    return f"[{band[0]}, {band[1]}]"


def same_circuit(problem: Problem, candidate_circuit: str | None, manifest_circuit: str | None) -> Guard:
    """The circuit of the env's text is the one the candidate built and the round's manifest recorded."""
    mine = problem.circuit_sha256
    differing = {
        name: sha
        for name, sha in (("candidate", candidate_circuit), ("manifest", manifest_circuit))
        if sha not in (None, mine)
    }
    detail = ", ".join(f"the {name} has {sha}" for name, sha in differing.items()) or (
        "the candidate built the same"
        + (", the manifest records the same" if manifest_circuit else "; no manifest to compare")
    )
    return Guard(name="same_circuit", passed=not differing, evidence=f"circuit of the env {mine[:16]}; {detail}")


def baseline_interval(counts: PairedCounts, reference_errors: int, reference_shots: int) -> Guard:
    """The plain backend errs as often here as on a draw of the judge's own that no candidate ever touches."""
    total = counts.errors_reference + reference_errors
    share = counts.shots / (counts.shots + reference_shots) if counts.shots else 0.5
    chance = float(distributions.binomtest(counts.errors_reference, total, share).pvalue) if total else 1.0
    return Guard(
        name="baseline_interval",
        passed=chance >= FALSE_ALARM_RATE,
        evidence=f"plain backend: {counts.errors_reference} errors in {counts.shots} judged shots, {reference_errors} "
        f"in {reference_shots} reference shots; difference at least as large by chance: {chance:.2g}",
    )


def batch_independence(
    whole: NDArray[np.float32] | None, split: NDArray[np.float32] | None, differing: int | None
) -> Guard:
    """The same shots in another order and in batches of other sizes (rows put back) give the same answer."""
    if whole is None or split is None or differing is None:
        return Guard(name="batch_independence", passed=False, evidence="no complete answers to compare")
    max_difference = float(np.max(np.abs(whole - split) / np.maximum(1.0, np.abs(whole)), initial=0.0))
    allowed = max(1, math.floor(PREDICTION_TOLERANCE * len(whole)))
    return Guard(
        name="batch_independence",
        passed=bool(max_difference <= LOG_ODDS_TOLERANCE) and differing <= allowed,
        evidence=f"{len(whole)} shots permuted and sent in uneven batches: log-odds differ by at most "
        f"{max_difference:.2g} "
        f"(allowed {LOG_ODDS_TOLERANCE:g}), {differing} predictions differ (allowed {allowed})",
    )


def repeatable(one: NDArray[np.float32] | None, other: NDArray[np.float32] | None) -> Guard:
    """A second process, started afresh, gives the same bits for the same shots."""
    if one is None or other is None:
        return Guard(name="repeatable", passed=False, evidence="no complete answers to compare")
    same = one.tobytes() == other.tobytes()
    detail = "identical" if same else f"differ by up to {float(np.max(np.abs(one - other))):.2g}"
    return Guard(name="repeatable", passed=same, evidence=f"{len(one)} shots in a second process: log-odds {detail}")


def complete(failures: Mapping[str, int], shots: int) -> Guard:
    """No crash, timeout, wrong shape or non-finite value; each such shot was counted as an error."""
    unusable = sum(failures.values())
    detail = "; ".join(f"{count} shots: {reason}" for reason, count in failures.items() if count)
    if not shots:
        detail = f"the net never answered ({'; '.join(failures) or 'nothing was asked'})"
    return Guard(
        name="complete",
        passed=not failures,
        evidence=f"{unusable} of {shots} shots without a usable answer{f' ({detail})' if detail else ''}",
    )


def ablation(prior_only: PairedCounts, shuffled: PairedCounts, shuffled_against_own: PairedCounts) -> Guard:
    """Without the net's information the gain is gone.

    prior_only: public priors through the same reweighted decoding, against the plain backend. shuffled: each shot
    under another shot's log-odds, against the plain backend; shuffled_against_own: the same against its own log-odds.
    """
    prior_gains = log_e_value(prior_only.fixed, prior_only.broken) >= -math.log(FALSE_ALARM_RATE)
    shuffled_gains = log_e_value(shuffled.fixed, shuffled.broken) >= math.log(20)
    loses = log_e_value(shuffled_against_own.broken, shuffled_against_own.fixed) >= math.log(20)
    return Guard(
        name="ablation",
        passed=not prior_gains and (loses or not shuffled_gains),
        evidence=f"{prior_only.shots} shots: priors alone fix {prior_only.fixed} and break {prior_only.broken}; "
        f"another shot's log-odds fix {shuffled.fixed} and break {shuffled.broken} "
        f"(errors {shuffled.errors_reference} plain, {shuffled.errors_candidate} shuffled, "
        f"{shuffled_against_own.errors_reference} own)",
    )


def canary(agreeing: int, shots: int) -> Guard:
    """Labels flipped by a secret coin in the judge's memory can't be met better than by chance, unless they leak."""
    chance = float(distributions.binom.sf(agreeing - 1, shots, 0.5)) if shots else 1.0
    return Guard(
        name="canary",
        passed=chance >= FALSE_ALARM_RATE,
        evidence=f"{agreeing} of {shots} predictions meet labels flipped by a secret coin; "
        f"this many or more by chance: {chance:.2g}",
    )


def other_points(points: tuple[PairedEffect, ...]) -> Guard:
    """The env's other p, same weights, priors moved to that p: no harm there."""
    harmed = [e for e in points if log_e_value(e.counts.broken, e.counts.fixed) >= -math.log(HARM_LEVEL)]
    detail = "; ".join(
        f"p={effect.p:g}: fixes {effect.counts.fixed}, breaks {effect.counts.broken} of {effect.counts.shots}"
        for effect in points
    )
    return Guard(name="other_points", passed=not harmed, evidence=detail or "the env has no other p")


def cost(counted: Cost | None, env: EnvSpec, *, stored_bytes: int, code_bytes: int, shots: int) -> Guard:
    """The count keeps the env's bounds and is not above the claim; weights on disk and CPU time agree with it.

    stored_bytes: tensors in the checkpoint, which a count in the candidate's own process can't talk away.
    code_bytes: what a branch's code adds to the trusted surface, compressed, and its checkpoint to its tensors: weights
    written there are in no count.
    shots: how many the CPU time was taken over; first calls may cost START_S more.
    """
    if counted is None:
        return Guard(name="cost", passed=False, evidence="no net was built, so nothing could be counted")
    violations = []
    limits = env.constraints
    for name, mine, claim, most in (
        ("parameters", counted.n_params, counted.claimed_n_params, limits.max_params),
        ("FLOPs", counted.flops_per_syndrome, counted.claimed_flops_per_syndrome, limits.max_flops_per_syndrome),
    ):
        if claim is not None and claim < mine:
            violations.append(f"claims {claim} {name}, has {mine}")
        if mine > most:
            violations.append(f"{mine} {name} are above the env's {most}")
    if stored_bytes > MAX_BYTES_PER_PARAM * counted.n_params:
        violations.append(f"{stored_bytes} bytes of tensors can't be {counted.n_params} parameters")
    if code_bytes > MAX_CODE_BYTES:
        violations.append(
            f"{code_bytes} bytes of compressed new code and the checkpoint's loose ends, at most {MAX_CODE_BYTES}"
        )
    allowed_us = BASE_US_PER_SHOT + counted.flops_per_syndrome / MIN_FLOPS_PER_US + 1e6 * WARMUP_CPU_S / max(shots, 1)
    if counted.candidate_us_per_shot > allowed_us:
        violations.append(f"{counted.candidate_us_per_shot:.0f} us a shot can't be {counted.flops_per_syndrome} FLOPs")
    return Guard(
        name="cost",
        passed=not violations,
        evidence="; ".join(violations)
        or f"{counted.n_params} parameters, {counted.flops_per_syndrome} FLOPs a shot, by the {counted.counted_by}; "
        f"claims are not below",
    )


def claimed_gain(claimed: RoundMetrics | None, effect: PairedEffect | None) -> Guard:
    """The gain the round measured on public seeds is met on secret ones: a memoriser's is not."""
    name = "claimed_gain"
    if claimed is None or effect is None or None in (claimed.val_shots, claimed.val_fixed, claimed.val_broken):
        return Guard(name=name, passed=True, evidence="no claim on public shots to compare")
    shots, fixed, broken = int(claimed.val_shots or 0), int(claimed.val_fixed or 0), int(claimed.val_broken or 0)
    mine = effect.counts
    if not shots:
        return Guard(name=name, passed=True, evidence="no claim on public shots to compare")
    variance = (fixed + broken + 1) / shots**2 + (mine.fixed + mine.broken + 1) / mine.shots**2
    z = ((fixed - broken) / shots - effect.delta) / math.sqrt(variance)
    return Guard(
        name=name,
        passed=z <= 6.0,
        evidence=f"round, on public val seeds: {fixed} fixed, {broken} broken of {shots}; judge: {mine.fixed} fixed, "
        f"{mine.broken} broken of {mine.shots}; the claim is {z:+.1f} standard errors above (allowed 6)",
    )


def own_predictions(effects: Mapping[str, PairedEffect], plain: str) -> Guard:
    """The candidate does not err on the very shots on which a stronger baseline errs: it would be that baseline."""
    equal = [
        f"predictions equal baseline {name}: {counts.errors_candidate} errors, {counts.fixed + counts.broken} of "
        f"{counts.shots} shots differ"
        for name, effect in effects.items()
        if name != plain
        and (counts := effect.counts).errors_reference >= ENOUGH_ERRORS
        and counts.fixed + counts.broken <= SAME_ERRORS * counts.errors_reference
    ]
    return Guard(
        name="own_predictions",
        passed=not equal,
        evidence="; ".join(equal) or "predictions differ from those of every other baseline, or too few errors to tell",
    )


def first_draw(artifact: str, tested_artifacts: Mapping[str, int]) -> Guard:
    """One artifact, one draw a run: sent in again under another round's name it buys nothing."""
    earlier = tested_artifacts.get(artifact)
    return Guard(
        name="first_draw",
        passed=earlier is None,
        evidence=f"artifact {artifact[:16]} "
        + (f"was judged in round {earlier}" if earlier is not None else "was not judged before in this run"),
    )
