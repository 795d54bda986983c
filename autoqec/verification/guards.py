"""Guards: checks that the measured figures can be trusted, one function each.

A guard that trips makes the verdict SUSPICIOUS, or FAILED if it shows harm or missing answers; its evidence says what
was found. Thresholds of statistical guards are set so that an honest candidate trips one in about a million
verifications.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from autoqec.contracts.env import PREDICTED, SEED_SPACE, EnvSpec
from autoqec.contracts.round import PairedCounts, RoundMetrics
from autoqec.contracts.verdict import Cost, Guard, PairedEffect
from autoqec.qec.problem import Problem
from autoqec.verification.sequential import log_e_value

FALSE_ALARM_RATE = 1e-6
LOG_ODDS_TOLERANCE = 1e-4  # nats, and relative; BLAS is not bit-stable between batch sizes
ROUNDING = 1e-6  # of float32 log-odds, relative, when a network adds its terms in another order
PREDICTION_TOLERANCE = 1e-5  # share of predictions that may differ, because rounding breaks ties
HARM_LEVEL = 1e-3  # level of the test for harm at another p
MAX_BYTES_PER_PARAM = 4  # wider numbers could hold several parameters each
MAX_CODE_BYTES = 12 * 2**10  # compressed: about 40 kB of source; more than that must be weights
ENOUGH_ERRORS, SAME_ERRORS = 50, 0.01  # a candidate whose errors differ by less than 1% is a baseline in disguise
# Per shot, BASE_US_PER_SHOT of CPU time are allowed plus one microsecond per MIN_FLOPS_PER_US counted. The slowest kind
# of net available (neural BP, gathers and tiny tensors) does 260 FLOPs per microsecond, dense ones 20,000 and more.
BASE_US_PER_SHOT, MIN_FLOPS_PER_US = 50.0, 50.0
WARMUP_CPU_S = 1.0  # allowed once on top, for first calls
# Import of the editable modules, loading and counting take well under a second for the built-in nets.
MAX_STARTUP_CPU_S, STARTUP_GFLOPS = 3.0, 1.0
# Memory between two requests beyond that before the import: the table of honest nets is in docs/contracts/sandbox.md.
BASE_MEMORY_BYTES, MEMORY_BYTES_PER_PARAM = 32 * 2**20, 8


def seed_bands(env: EnvSpec, seeds: list[int]) -> Guard:
    """Check that seeds of the verification are distinct and lie above the public bands, which are below 2**32."""
    policy = env.seed_policy
    low = min(seeds, default=SEED_SPACE)
    passed = low >= SEED_SPACE and len(set(seeds)) == len(seeds)
    return Guard(
        name="seed_bands",
        passed=passed,
        evidence=f"train {_band(policy.train)}, val {_band(policy.val)}, holdout {_band(policy.holdout)} are disjoint; "
        f"{len(set(seeds))} distinct secret seeds of {len(seeds)}, all {'at or above' if passed else 'NOT above'} 2^32",
    )


def _band(band: tuple[int, int]) -> str:
    return f"[{band[0]}, {band[1]}]"


def same_circuit(problem: Problem, candidate_circuit: str | None, manifest_circuit: str | None) -> Guard:
    """Check that the env's circuit is the one that the candidate built and the round's manifest recorded."""
    expected = problem.circuit_sha256
    differing = {
        name: sha
        for name, sha in (("candidate", candidate_circuit), ("manifest", manifest_circuit))
        if sha not in (None, expected)
    }
    detail = ", ".join(f"the {name} has {sha}" for name, sha in differing.items()) or (
        "the candidate built the same"
        + (", the manifest records the same" if manifest_circuit else "; no manifest to compare")
    )
    return Guard(name="same_circuit", passed=not differing, evidence=f"circuit of the env {expected[:16]}; {detail}")


def baseline_interval(counts: PairedCounts, reference_errors: int, reference_shots: int) -> Guard:
    """Check the error rate of the baseline decoder against an independent draw and decoder."""
    total = counts.errors_reference + reference_errors
    share = counts.shots / (counts.shots + reference_shots) if counts.shots else 0.5
    chance = float(distributions.binomtest(counts.errors_reference, total, share).pvalue) if total else 1.0
    return Guard(
        name="baseline_interval",
        passed=chance >= FALSE_ALARM_RATE,
        evidence=f"baseline decoder: {counts.errors_reference} errors in {counts.shots} shots of the verification, "
        f"{reference_errors} in {reference_shots} reference shots; "
        f"difference at least as large by chance: {chance:.2g}",
    )


def allowed_differences(shots: int, by_rounding: tuple[int, int] = (0, 0)) -> int:
    """Return how many predictions may differ because log-odds are rounded.

    Args:
        shots: Number of predictions that are compared.
        by_rounding: Predictions of the inner decoder that rounding errors of the log-odds change, and how many were
            compared. Weighted matching changes almost none; BP+OSD orders columns of equal reliability by them.
    """
    changed, compared = by_rounding
    expected = int(distributions.binom.isf(FALSE_ALARM_RATE, shots, changed / compared)) if changed else 0
    return max(1, math.floor(PREDICTION_TOLERANCE * shots), expected)


def largest_difference(whole: NDArray[np.float32], split: NDArray[np.float32]) -> float:
    """Return the largest difference of log-odds, relative where they exceed 1 nat."""
    return float(np.max(np.abs(whole - split) / np.maximum(1.0, np.abs(whole)), initial=0.0))


def batch_independence(
    whole: NDArray[np.float32] | None,
    split: NDArray[np.float32] | None,
    differing: int | None,
    single_shots: tuple[int, int] = (0, 0),
    by_rounding: tuple[int, int] = (0, 0),
) -> Guard:
    """Check that the same shots in another order, in batches of other sizes and one by one get the same answers.

    Args:
        whole: Log-odds of the shots in one batch, float32 [n, n_edges]; None if missing.
        split: Log-odds of the same shots, permuted and in uneven batches, rows restored.
        differing: Number of predictions that differ.
        single_shots: Number of predictions that differ when the decoder decodes shots one by one, and of such shots.
        by_rounding: See `allowed_differences`.
    """
    if whole is None or split is None or differing is None:
        return Guard(name="batch_independence", passed=False, evidence="no complete answers to compare")
    max_difference = largest_difference(whole, split)
    allowed = allowed_differences(len(whole), by_rounding)
    n_single, allowed_single = single_shots[0], max(allowed_differences(n, by_rounding) for n in (single_shots[1], 1))
    changed, compared = by_rounding
    return Guard(
        name="batch_independence",
        passed=bool(max_difference <= LOG_ODDS_TOLERANCE) and differing <= allowed and n_single <= allowed_single,
        evidence=f"{len(whole)} shots permuted and sent in uneven batches: log-odds differ by at most "
        f"{max_difference:.2g} "
        f"(allowed {LOG_ODDS_TOLERANCE:g}), {differing} predictions differ (allowed {allowed})"
        + (f"; {n_single} of single shots (allowed {allowed_single})" if n_single > 1 else "")
        + (f"; rounding errors alone change {changed} of {compared} predictions of the decoder" if changed else ""),
    )


def repeatable(first: NDArray[np.float32] | None, second: NDArray[np.float32] | None) -> Guard:
    """Check that a second process gives bit-identical answers for the same shots."""
    if first is None or second is None:
        return Guard(name="repeatable", passed=False, evidence="no complete answers to compare")
    same = first.tobytes() == second.tobytes()
    detail = "identical" if same else f"differ by up to {float(np.max(np.abs(first - second))):.2g}"
    return Guard(name="repeatable", passed=same, evidence=f"{len(first)} shots in a second process: log-odds {detail}")


def complete(failures: Mapping[str, int], shots: int) -> Guard:
    """Check that no shot ended in a crash, timeout, wrong shape or non-finite value; each counted as an error.

    Args:
        failures: Reason -> number of shots.
        shots: Shots sent.
    """
    unusable = sum(failures.values())
    detail = "; ".join(f"{count} shots: {reason}" if count else reason for reason, count in failures.items())
    if not shots:
        detail = f"no answer was received ({'; '.join(failures) or 'no request was sent'})"
    return Guard(
        name="complete",
        passed=not failures,
        evidence=f"{unusable} of {shots} shots without a usable answer{f' ({detail})' if detail else ''}",
    )


def ablation(prior_only: PairedCounts, shuffled: PairedCounts, shuffled_against_own: PairedCounts) -> Guard:
    """Check that the gain vanishes without the net's information.

    Args:
        prior_only: Public priors through the same reweighted decoding, against the baseline decoder.
        shuffled: Each shot under another shot's log-odds, against the baseline decoder.
        shuffled_against_own: The same, against decoding under its own log-odds.
    """
    prior_gains = log_e_value(prior_only.fixed, prior_only.broken) >= -math.log(FALSE_ALARM_RATE)
    shuffled_gains = log_e_value(shuffled.fixed, shuffled.broken) >= math.log(20)
    loses = log_e_value(shuffled_against_own.broken, shuffled_against_own.fixed) >= math.log(20)
    return Guard(
        name="ablation",
        passed=not prior_gains and (loses or not shuffled_gains),
        evidence=f"{prior_only.shots} shots: priors alone fix {prior_only.fixed} and break {prior_only.broken}; "
        f"another shot's log-odds fix {shuffled.fixed} and break {shuffled.broken} "
        f"(errors {shuffled.errors_reference} baseline, {shuffled.errors_candidate} shuffled, "
        f"{shuffled_against_own.errors_reference} own)",
    )


def canary(agreeing: int, shots: int) -> Guard:
    """Check that predictions agree with labels flipped by a secret coin no better than chance: else labels leak."""
    chance = float(distributions.binom.sf(agreeing - 1, shots, 0.5)) if shots else 1.0
    return Guard(
        name="canary",
        passed=chance >= FALSE_ALARM_RATE,
        evidence=f"{agreeing} of {shots} predictions agree with labels flipped by a secret coin; "
        f"this many or more by chance: {chance:.2g}",
    )


def other_points(points: tuple[PairedEffect, ...]) -> Guard:
    """Check for harm at the env's other p, with the same weights and the priors of that p."""
    harmed = [e for e in points if log_e_value(e.counts.broken, e.counts.fixed) >= -math.log(HARM_LEVEL)]
    detail = "; ".join(
        f"p={effect.p:g}: fixes {effect.counts.fixed}, breaks {effect.counts.broken} of {effect.counts.shots}"
        for effect in points
    )
    return Guard(name="other_points", passed=not harmed, evidence=detail or "the env has no other p")


def other_members(effects: Mapping[str, PairedEffect]) -> Guard:
    """Check for harm on the other circuits of a family, by name with p; the level is shared by them."""
    counts = {name: effect.counts for name, effect in effects.items()}
    level = HARM_LEVEL / max(1, len(effects))
    harmed = [name for name, each in counts.items() if log_e_value(each.broken, each.fixed) >= -math.log(level)]
    detail = "; ".join(
        f"{name}: fixes {each.fixed}, breaks {each.broken} of {each.shots}" for name, each in counts.items()
    )
    return Guard(name="other_members", passed=not harmed, evidence=detail)


def cost(
    counted: Cost | None,
    env: EnvSpec,
    *,
    stored_bytes: int,
    code_bytes: int,
    shots: int,
    repeated_shots: int = 0,
) -> Guard:
    """Check the counted cost against the env's limits, the claims, and resources that branch code cannot misstate.

    Args:
        env: Names the limits.
        counted: The count, with CPU time and memory as the kernel accounts for them; None if no net was built.
        stored_bytes: Tensors in the checkpoint.
        code_bytes: Compressed bytes that the branch adds to the trusted modules and its checkpoint to its tensors.
        shots: Shots over which the CPU time was measured.
        repeated_shots: Shots that the second process answered before its start-up time was read; 0: it was not.
    """
    if counted is None:
        return Guard(name="cost", passed=False, evidence="no net was built, so nothing could be counted")
    resources = _resource_violations(counted, stored_bytes, code_bytes, shots, repeated_shots)
    violations = [*_count_violations(counted, env), *resources]
    return Guard(
        name="cost",
        passed=not violations,
        evidence="; ".join(violations)
        or f"{counted.n_params} parameters, {counted.flops_per_syndrome} FLOPs per shot, by the {counted.counted_by}; "
        f"claims are not below",
    )


def _count_violations(counted: Cost, env: EnvSpec) -> Iterator[str]:
    limits = env.constraints
    for name, count, claim, most in (
        ("parameters", counted.n_params, counted.claimed_n_params, limits.max_params),
        ("FLOPs", counted.flops_per_syndrome, counted.claimed_flops_per_syndrome, limits.max_flops_per_syndrome),
    ):
        if claim is not None and claim < count:
            yield f"claims {claim} {name}, has {count}"
        if count > most:
            yield f"{count} {name} exceed the env's limit {most}"
    ratio, most_ratio = counted.time_ratio, limits.max_time_ratio
    if most_ratio is not None and ratio is not None and ratio > most_ratio:
        yield f"decoding takes {ratio:.3g} x the CPU time of correlated matching, at most {most_ratio:g} x in this env"


def _resource_violations(
    counted: Cost, stored_bytes: int, code_bytes: int, shots: int, repeated_shots: int
) -> Iterator[str]:
    params, flops = counted.n_params, counted.flops_per_syndrome
    if stored_bytes > MAX_BYTES_PER_PARAM * params:
        yield f"{stored_bytes} bytes of tensors are more than {params} parameters"
    if code_bytes > MAX_CODE_BYTES:
        yield f"{code_bytes} bytes of compressed new code and of checkpoint beyond tensors, at most {MAX_CODE_BYTES}"
    allowed_us = BASE_US_PER_SHOT + flops / MIN_FLOPS_PER_US + 1e6 * WARMUP_CPU_S / max(shots, 1)
    if counted.candidate_us_per_shot > allowed_us:
        yield f"{counted.candidate_us_per_shot:.0f} us per shot are more than {flops} FLOPs"
    startup_s = MAX_STARTUP_CPU_S + max(params, flops) / (1e9 * STARTUP_GFLOPS)
    if repeated_shots:  # first calls, and shots that take longer than the average
        startup_s += WARMUP_CPU_S + 0.5e-6 * counted.candidate_us_per_shot * repeated_shots
    if counted.startup_cpu_s > startup_s:
        yield f"start-up took {counted.startup_cpu_s:.1f} CPU seconds, at most {startup_s:.1f}"
    memory_mb = (BASE_MEMORY_BYTES + MEMORY_BYTES_PER_PARAM * params) / 1e6
    if counted.memory_growth_mb > memory_mb:
        yield f"memory grew by {counted.memory_growth_mb:.0f} MB, at most {memory_mb:.0f} for {params} parameters"


def claimed_gain(claimed: RoundMetrics | None, effect: PairedEffect | None) -> Guard:
    """Check the gain that the round measured on public seeds against secret ones: memorised shots do not carry over."""
    name = "claimed_gain"
    if claimed is None or effect is None or None in (claimed.val_shots, claimed.val_fixed, claimed.val_broken):
        return Guard(name=name, passed=True, evidence="no claim on public shots to compare")
    shots, fixed, broken = int(claimed.val_shots or 0), int(claimed.val_fixed or 0), int(claimed.val_broken or 0)
    counts = effect.counts
    if not shots:
        return Guard(name=name, passed=True, evidence="no claim on public shots to compare")
    variance = (fixed + broken + 1) / shots**2 + (counts.fixed + counts.broken + 1) / counts.shots**2
    z = ((fixed - broken) / shots - effect.delta) / math.sqrt(variance)
    return Guard(
        name=name,
        passed=z <= 6.0,
        evidence=f"round, on public val seeds: {fixed} fixed, {broken} broken of {shots}; verifier: "
        f"{counts.fixed} fixed, {counts.broken} broken of {counts.shots}; "
        f"the claim is {z:+.1f} standard errors above (allowed 6)",
    )


def own_predictions(effects: Mapping[str, PairedEffect], plain: str) -> Guard:
    """Check that the candidate's errors are not those of another baseline: it would be that baseline in disguise.

    Recorded predictions are left out: a candidate cannot read them, and they may be those of the inner decoder.
    """
    equal = []
    for name, effect in effects.items():
        if name == plain or name.startswith(PREDICTED):
            continue
        counts = effect.counts
        differing = counts.fixed + counts.broken
        if counts.errors_reference >= ENOUGH_ERRORS and differing <= SAME_ERRORS * counts.errors_reference:
            equal.append(
                f"predictions equal baseline {name}: {counts.errors_candidate} errors, {differing} of {counts.shots} "
                "shots differ"
            )
    return Guard(
        name="own_predictions",
        passed=not equal,
        evidence="; ".join(equal) or "predictions differ from those of every other baseline, or too few errors to tell",
    )


def first_draw(artifact: str, tested_artifacts: Mapping[str, int]) -> Guard:
    """Check that the run did not test this artifact before: each artifact gets one draw."""
    earlier = tested_artifacts.get(artifact)
    return Guard(
        name="first_draw",
        passed=earlier is None,
        evidence=f"artifact {artifact[:16]} "
        + (f"was tested in round {earlier}" if earlier is not None else "was not tested before in this run"),
    )
