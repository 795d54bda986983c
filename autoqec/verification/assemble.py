"""Assemble the report from a session's evidence: remaining guards, verdict, intervals and claim."""

from __future__ import annotations

from autoqec.contracts.env import CodeMember, EnvSpec, StimGeneratorCode
from autoqec.contracts.events import CompositionCompared, VerdictReached
from autoqec.contracts.round import utc_now
from autoqec.contracts.verdict import (
    Composition,
    Cost,
    Guard,
    MemberResult,
    PairedEffect,
    Verdict,
    VerifyReport,
)
from autoqec.qec.stats import rate
from autoqec.system import machine
from autoqec.verification import artifact, guards
from autoqec.verification.composition import evaluate_composition
from autoqec.verification.decision import null_power
from autoqec.verification.session import Evidence, VerificationSession, simultaneous_effect
from autoqec.verification.shot_stream import commitment


def build_report(session: VerificationSession, evidence: Evidence, recorded_circuit: str | None) -> VerifyReport:
    """Decide, compare a composition with its parents, and build the report.

    Args:
        session: Of the candidate.
        evidence: What the session measured.
        recorded_circuit: SHA-256 of the circuit in the round's manifest, if it has one.

    Returns:
        The report; its `judge_wallclock_s` is 0, for the caller to set.
    """
    request, env, shot_stream = session.request, session.env, session.shot_stream
    effect = evidence.effects.get(session.reference)
    baselines = session.baselines.results(evidence.effects) if evidence.effects else ()
    cost = count_cost(session, evidence)
    all_guards = _guards(session, evidence, cost, recorded_circuit)
    verdict, reasons = session.decide(all_guards, baselines)
    members = member_results(env, evidence, verdict, request.attempt_index)
    composition = _composition(session, evidence, verdict)
    session.on_event(VerdictReached(round=session.round, verdict=verdict, reasons=tuple(reasons)))
    return VerifyReport(
        run_id=request.run_id,
        round=request.round.round,
        round_attempt_id=request.round_attempt_id,
        branch=request.branch,
        commit_sha=request.commit_sha,
        env_name=env.name,
        env_yaml_sha256=request.env_sha256,
        artifact_sha256=session.frozen.sha256,
        verdict=verdict,
        reasons=reasons,
        claim=session.claim(verdict, baselines, members),
        backend=env.plain,
        decoder_rate=rate(effect.counts.errors_candidate, effect.counts.shots, rounds=env.code.rounds)
        if effect
        else None,
        effect=effect,
        effect_simultaneous=session.simultaneous_effect(),
        panel=baselines,
        points=tuple(evidence.points),
        members=members,
        test=evidence.test,
        guards=all_guards,
        cost=cost,
        composition=composition,
        recorded=evidence.recorded,
        bundle_id=shot_stream.id if shot_stream.digests else None,
        seeds_commitment=commitment(request.secret),
        chunk_digests=shot_stream.digest_lines(),
        sandbox=session.frozen.sandbox_backend,
        versions=machine.versions(),
        not_tested=_not_tested(session, evidence, effect),
        judge_wallclock_s=0.0,
        finished_at=utc_now(),
    )


def member_results(env: EnvSpec, evidence: Evidence, verdict: Verdict, attempt_index: int) -> tuple[MemberResult, ...]:
    """Return the results on every circuit of a family at every p, the target at its p first; () without a family.

    The intervals of all of them and of all attempts of the run hold together. The target at its p is claimed by the
    sequential test, the others by their intervals, and none unless the verdict is VERIFIED: see docs/adr/0019.
    """
    if not (isinstance(env.code, StimGeneratorCode) and env.code.members and evidence.members):
        return ()
    target = CodeMember(distance=env.code.distance, rounds=env.code.rounds)
    measured = [(target, tuple(evidence.effects.values()))]
    for p in dict.fromkeys(point.p for point in evidence.points):
        measured.append((target, tuple(point for point in evidence.points if point.p == p)))
    measured += [(draw.size, tuple(effects.values())) for draw, effects in evidence.members]
    n_intervals = sum(len(effects) for _, effects in measured)
    results = []
    for index, (member, effects) in enumerate(measured):
        wide = [simultaneous_effect(effect, attempt_index, n_intervals) for effect in effects]
        low = wide[0].relative_low
        shown = index == 0 or (low is not None and low > 0 and low >= env.protocol.min_relative_gain)
        results.append(
            MemberResult(**member.dump(), p=effects[0].p, effects=wide, holds=shown and verdict == "VERIFIED")
        )
    return tuple(results)


def count_cost(session: VerificationSession, evidence: Evidence) -> Cost | None:
    """Return the counted cost with the first process's CPU time and memory; None if no net was built."""
    if evidence.model is None:
        return None
    claimed = session.request.claimed
    inference_s = evidence.cpu_s - evidence.startup_cpu_s
    candidate_us = 1e6 * max(0.0, inference_s) / max(1, evidence.shots_sent)
    # What the second process spent beyond its shots: it has not seen the earlier ones, so it must make up for whatever
    # the first one did in the meantime that its answers depend on.
    startup_s = max(evidence.startup_cpu_s, evidence.second_cpu_s - 1e-6 * candidate_us * evidence.repeated_shots)
    share = 1.0 if evidence.ambiguous_share is None else evidence.ambiguous_share
    decoder_us = evidence.decoder_us
    return Cost(
        n_params=evidence.model.n_params,
        flops_per_syndrome=evidence.model.flops_per_syndrome,
        claimed_n_params=claimed.n_params if claimed else None,
        claimed_flops_per_syndrome=claimed.flops_per_syndrome if claimed else None,
        counted_by="baseline compiler" if session.request.config_only else "candidate sandbox",
        candidate_us_per_shot=candidate_us,
        startup_cpu_s=startup_s,
        memory_growth_mb=evidence.memory_bytes / 1e6,
        ambiguous_share=evidence.ambiguous_share,
        decoding_us_per_shot=None if decoder_us is None else decoder_us + share * candidate_us,
        correlated_us_per_shot=None if decoder_us is None else evidence.correlated_us,
        latency_us=evidence.latency,
        latency_failure=evidence.latency_failure,
        cpu_model=None if decoder_us is None else machine.cpu_model(),
    )


def _guards(
    session: VerificationSession, evidence: Evidence, cost: Cost | None, recorded_circuit: str | None
) -> tuple[Guard, ...]:
    request, env, frozen = session.request, session.env, session.frozen
    found = (
        guards.seed_bands(env, session.shot_stream.seeds),
        guards.same_circuit(
            session.problem, evidence.model.circuit_sha256 if evidence.model else None, recorded_circuit
        ),
        guards.complete(evidence.failures, evidence.shots_sent + evidence.member_shots_sent),
        guards.cost(
            cost,
            env,
            stored_bytes=artifact.stored_bytes(frozen.checkpoint),
            code_bytes=artifact.uncounted_bytes(frozen),
            shots=evidence.shots_sent,
            repeated_shots=evidence.repeated_shots,
        ),
        guards.first_draw(frozen.sha256, request.tested_artifacts),
    )
    return session.all_guards(found)


def _composition(session: VerificationSession, evidence: Evidence, verdict: Verdict) -> Composition | None:
    """Compare a composition with its parents, unless it failed or a guard tripped."""
    request = session.request
    if request.no_comparison_reason is not None:
        evidence.not_run.append(f"synergy with the parents: {request.no_comparison_reason}")
    if not request.parents:
        return None
    if verdict in ("FAILED", "SUSPICIOUS"):
        evidence.not_run.append(f"synergy with the parents: the composition is {verdict}")
        return None
    found = evaluate_composition(session.frozen, request, session.frozen.dir.parent)
    if isinstance(found, str):
        evidence.not_run.append(found)
        return None
    session.on_event(CompositionCompared(round=session.round, verdict=found.verdict, evidence=found.evidence))
    return found


def _not_tested(session: VerificationSession, evidence: Evidence, effect: PairedEffect | None) -> tuple[str, ...]:
    lines = [
        session.untested_shots,
        "latency on a real-time system: the cost is counted, not measured against a deadline",
        *(["cost on the family's other circuits: it is counted and measured on the target"] * bool(evidence.members)),
        *evidence.not_run,
    ]
    if len(session.env.points) == 1:
        lines.append("any other operating point: the env names one")
    if (
        not session.env.code.own_shots
        and effect is not None
        and (effect.relative_low is None or effect.relative_low <= 0)
    ):
        lines.append(f"small gains: {null_power(effect)}")
    if session.request.claimed is None:
        lines.append("the round's own claims of cost and gain: none were given")
    return tuple(lines)
