"""The verification report: built from a session's evidence, written, rendered, and compared with a repetition.

verification_report.json is written last and marks the verification as complete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autoqec.contracts.base import canonical_json
from autoqec.contracts.env import CodeMember, EnvSpec, StimGeneratorCode
from autoqec.contracts.events import CompositionCompared, VerdictReached
from autoqec.contracts.round import utc_now
from autoqec.contracts.verdict import (
    Composition,
    Cost,
    Guard,
    MemberResult,
    PairedEffect,
    Rate,
    Verdict,
    VerifyReport,
)
from autoqec.errors import ContractError
from autoqec.qec.stats import rate
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout
from autoqec.system import machine
from autoqec.verification import artifact, guards
from autoqec.verification.composition import evaluate_composition
from autoqec.verification.decision import null_power
from autoqec.verification.request import SHOTS_DIFFER
from autoqec.verification.session import Evidence, VerificationSession, simultaneous_effect
from autoqec.verification.shot_stream import commitment

_TEMPLATE = "report.md.j2"
# Not determined by the shots: time and resources, and the machine itself. (History records the sandbox as well.)
MEASURED = {"finished_at", "judge_wallclock_s", "versions", "sandbox"}
MEASURED_COST = {
    "candidate_us_per_shot", "startup_cpu_s", "memory_growth_mb", "decoding_us_per_shot", "correlated_us_per_shot",
    "latency_us", "latency_failure", "cpu_model",
}  # fmt: skip
TEXTS = {"claim", "reasons", "not_tested", "guards"}
# Their evidence quotes rounding errors, resources or text of branch code, which differ between machines.
MACHINE_GUARDS = frozenset({"cost", "batch_independence", "complete", "repeatable"})
TOLERANCE = 1e-6  # relative: special functions differ in the last digits between versions of scipy
TEXT_TOLERANCE = 0.02  # of figures in texts, which have two digits or more
# Lines of `not_tested`: whether a composition could be compared depends on which parents were verified at the time, and
# whether single shots were answered in time depends on the machine.
OF_THE_MOMENT = ("synergy", "latency of single shots")
MAX_SHOWN = 160  # characters of a value in a difference
TextComparison = Callable[[str, str], bool]
# Shots with several matchings of minimum weight: which one is found may differ between versions of a matching library.
_TIES = re.compile(r"priors alone fix \d+ and break \d+")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


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


def write(round_dir: RoundLayout, report: VerifyReport) -> None:
    """Write both files.

    Raises:
        ContractError: The round already has a report.
    """
    if round_dir.report_json.exists():
        raise ContractError("a report is never overwritten", location=str(round_dir.report_json))
    atomic.write_text(round_dir.report_md, render(report))
    atomic.write_json(round_dir.report_json, report.dump())


def render(report: VerifyReport) -> str:
    """Render the report as Markdown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters.update(rate=_rate, percent=_percent, delta=_delta, cell=_table_cell, count=_count)
    return templates.get_template(_TEMPLATE).render(report=report)


def _rate(value: Rate) -> str:
    return f"{value.rate:.4g} [{value.low:.4g}, {value.high:.4g}]"


def _percent(effect: PairedEffect) -> str:
    if effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return "–"
    return f"{100 * effect.relative:.1f}% [{100 * effect.relative_low:.1f}, {100 * effect.relative_high:.1f}]"


def _count(value: int, cost: Cost) -> str:
    return f"at least {value}" if cost.is_lower_bound else str(value)


def _delta(effect: PairedEffect) -> str:
    return f"{effect.delta:.4g} [{effect.delta_low:.4g}, {effect.delta_high:.4g}]"


def _table_cell(text: str) -> str:
    """Escape text for a table cell; it may quote branch code, so markup is removed."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain.replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")[:600]


def report_differences(saved: VerifyReport, replayed: VerifyReport) -> list[str]:
    """Return one line per difference that neither the machine nor the versions of libraries explain.

    Texts are compared also where the versions of libraries differ: `versions` are a statement of the report, which
    must not switch the comparison off.
    """
    agree: TextComparison = str.__eq__ if saved.versions == replayed.versions else _nearly_equal
    differences = [*_shot_differences(saved, replayed)]
    differences += _value_differences("", _determined(saved), _determined(replayed))
    differences += _guard_differences(saved, replayed, agree)
    differences += _text_differences(saved, replayed, agree)
    return differences


def _nearly_equal(saved: str, replayed: str) -> bool:
    """Return whether the wording is the same and the figures are, up to their last digits."""
    pairs = zip(_NUMBER.findall(saved), _NUMBER.findall(replayed), strict=False)
    return _NUMBER.sub("#", saved) == _NUMBER.sub("#", replayed) and all(
        math.isclose(float(recorded.replace(",", "")), float(repeated.replace(",", "")), rel_tol=TEXT_TOLERANCE)
        for recorded, repeated in pairs
    )


def _determined(report: VerifyReport) -> dict[str, Any]:
    """Return the fields that request and shots determine."""
    excluded = MEASURED | TEXTS | {"chunk_digests", "bundle_id"}
    fields = report.model_dump(mode="json", include=set(VerifyReport.model_fields) - excluded)
    if fields["cost"]:
        fields["cost"] = {name: value for name, value in fields["cost"].items() if name not in MEASURED_COST}
    return fields


def _shot_differences(saved: VerifyReport, replayed: VerifyReport) -> Iterator[str]:
    if saved.chunk_digests != replayed.chunk_digests:
        pairs = zip(saved.chunk_digests, replayed.chunk_digests, strict=False)
        first = next((recorded for recorded, repeated in pairs if recorded != repeated), "their number")
        stim = (saved.versions.get("stim"), replayed.versions.get("stim"))
        yield f"{SHOTS_DIFFER}, from {first} on (stim {stim[0]} in the report, {stim[1]} now)"
    elif saved.bundle_id != replayed.bundle_id:
        yield f"bundle_id was {saved.bundle_id}, is {replayed.bundle_id}"


def _value_differences(path: str, saved: Any, replayed: Any) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(replayed, dict):
        for name in dict.fromkeys([*saved, *replayed]):
            yield from _value_differences(f"{path}.{name}" if path else name, saved.get(name), replayed.get(name))
    elif isinstance(saved, list) and isinstance(replayed, list) and len(saved) == len(replayed):
        for index, (recorded, repeated) in enumerate(zip(saved, replayed, strict=True)):
            yield from _value_differences(f"{path}[{index}]", recorded, repeated)
    elif not _equal(saved, replayed):
        yield f"{path} was {_shown(saved)}, is {_shown(replayed)}"


def _equal(saved: Any, replayed: Any) -> bool:
    if isinstance(saved, float) and isinstance(replayed, (float, int)) or isinstance(replayed, float):
        numbers = isinstance(saved, (float, int))
        return numbers and math.isclose(saved, replayed, rel_tol=TOLERANCE, abs_tol=1e-12)
    return bool(saved == replayed)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _guard_differences(saved: VerifyReport, replayed: VerifyReport, agree: TextComparison) -> Iterator[str]:
    recorded, repeated = ({guard.name: guard for guard in report.guards} for report in (saved, replayed))
    if len(recorded) != len(saved.guards):
        yield "a guard is listed twice"
    for name in dict.fromkeys([*recorded, *repeated]):
        if name not in repeated:
            yield f"guard {name} is not among the guards"
        elif name not in recorded:
            yield f"guard {name} is missing"
        elif recorded[name].passed != repeated[name].passed:
            yield f"guard {name} passed was {_shown(recorded[name].passed)}, is {_shown(repeated[name].passed)}"
        elif not agree(_evidence(recorded[name]), _evidence(repeated[name])):
            yield f"guard {name} evidence was {_shown(recorded[name].evidence)}, is {_shown(repeated[name].evidence)}"


def _evidence(guard: Guard) -> str:
    """Return the part of the evidence that does not depend on the machine or on the choice between equal matchings."""
    if guard.name == "ablation":
        return _TIES.sub("priors alone", guard.evidence)
    if guard.name not in MACHINE_GUARDS:
        return guard.evidence
    return _NUMBER.sub("#", guard.evidence) if guard.passed else ""


def _text_differences(saved: VerifyReport, replayed: VerifyReport, agree: TextComparison) -> Iterator[str]:
    if not agree(saved.claim, replayed.claim) or _NUMBER.findall(saved.claim) != _NUMBER.findall(replayed.claim):
        yield f"claim was {_shown(saved.claim)}, is {_shown(replayed.claim)}"
    tripped = {guard.name for guard in saved.guards if not guard.passed}
    if not tripped & MACHINE_GUARDS and not agree("\n".join(saved.reasons), "\n".join(replayed.reasons)):
        yield f"reasons was {_shown(list(saved.reasons))}, is {_shown(list(replayed.reasons))}"
    recorded, repeated = (
        [line for line in report.not_tested if not line.startswith(OF_THE_MOMENT)] for report in (saved, replayed)
    )
    if not agree("\n".join(recorded), "\n".join(repeated)):
        yield f"not_tested was {_shown(recorded)}, is {_shown(repeated)}"
