"""Measure one candidate: two processes, the test, the effect draw, other points and the guards that need answers."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import ClassVar

from autoqec.contracts.env import CORRELATED
from autoqec.contracts.events import EffectProgress, OnEvent, PointMeasured, SequentialTestProgress
from autoqec.contracts.names import SHA256
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import (
    BaselineResult,
    Guard,
    Latency,
    LatencyScope,
    MemberResult,
    PairedEffect,
    RecordedEvidence,
    SequentialTest,
    Verdict,
)
from autoqec.decoders import checkpoint
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.stats import error_mask, paired_effect
from autoqec.verification import decision, guards
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.baselines import Baselines, reference_errors
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure, start_candidate
from autoqec.verification.candidate_evaluation import (
    CandidateEvaluation,
    GuardChunk,
    measure_single_shots,
    rebatched_answers,
    repeated_answers,
    same_edges,
)
from autoqec.verification.request import VerifyRequest
from autoqec.verification.sequential import Monitor, e_lond_weight
from autoqec.verification.shot_stream import CHUNK, MemberDraw, ShotStream, member_draws

SHA256_PATTERN = re.compile(SHA256)
MAX_COUNT = 2**62
LATENCY_SHOTS = 2000
MISCOVERAGE = 0.05  # of the simultaneous intervals, over all attempts of a run together


@dataclass(frozen=True)
class ModelInfo:
    """What the candidate process says that it built, checked for types and range."""

    circuit_sha256: str
    n_params: int
    flops_per_syndrome: int


@dataclass
class Evidence:
    """What a session measured. Steps after a failure of the candidate are left out and named in `not_run`.

    Attributes:
        model: None if no net was built.
        effects: Effect draw, by baseline name; empty if it was not reached.
        points: The env's other p, against each baseline.
        members: Draws of other circuits of a family with their effects by baseline name.
        guards: Guards that need answers of the candidate.
        cpu_s: CPU time of the first process since it imported branch code; `startup_cpu_s` until it had built the net.
        memory_bytes: Most memory that a process still had between two draws, beyond what it had before that import.
        second_cpu_s: CPU time of the second process from that import until it had repeated `repeated_shots` shots.
        failures: Reason -> shots without a usable answer.
        ambiguous_share: Share of shots that the gate sends to the predecoder; None without a gate.
        decoder_us: CPU time of gate and inner decoder per shot of the effect draw; None if it was not reached.
        correlated_us: CPU time of correlated matching on these shots; None if the env has no matching.
        latency: Times of single shots; None if they were not measured.
        latency_failure: Why the candidate did not decode single shots.
        recorded: What a test on recorded shots spent; None on sampled shots.
    """

    model: ModelInfo | None = None
    test: SequentialTest | None = None
    effects: dict[str, PairedEffect] = field(default_factory=dict)
    points: list[PairedEffect] = field(default_factory=list)
    members: list[tuple[MemberDraw, dict[str, PairedEffect]]] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    shots_sent: int = 0
    member_shots_sent: int = 0
    ambiguous_share: float | None = None
    startup_cpu_s: float = 0.0
    second_cpu_s: float = 0.0
    repeated_shots: int = 0
    decoder_us: float | None = None
    correlated_us: float | None = None
    latency: Latency | None = None
    latency_failure: str | None = None
    recorded: RecordedEvidence | None = None
    cpu_s: float = 0.0
    memory_bytes: int = 0


class VerificationSession:
    """Collects the evidence on one frozen artifact, step by step.

    Attributes:
        reference: Baseline that the report's effect is measured against.
    """

    def __init__(self, request: VerifyRequest, frozen: FrozenArtifact, on_event: OnEvent) -> None:
        self.request, self.frozen, self.on_event = request, frozen, on_event
        self.round = request.round.round
        self.env = request.env
        self.problem = Problem.from_env(self.env)
        self.shot_stream = ShotStream(request.secret, frozen.sha256, self.env.seed_policy.holdout, request.shot_cache)
        self.baselines = Baselines(self.problem)
        self.evidence = Evidence()
        self.reference = self.env.plain

    def run(self) -> Evidence:
        """Run every step that the candidate's answers allow.

        Raises:
            ContractError: The checkpoint does not belong to this env or config.
        """
        request, evidence = self.request, self.evidence
        with ExitStack() as stack:
            # Both start now. The second one gets the branch's code when the first one has ended, so that the two never
            # run at the same time: locks, processor load and free memory carry no note from one to the other.
            first = stack.enter_context(closing(self._start()))
            second = stack.enter_context(closing(self._start(whole_decoder=self.frozen.modules_dir is None)))
            evaluation = CandidateEvaluation(
                self.problem,
                self.shot_stream,
                first,
                request.dsl.output_mode,
                checkpoint.resolved_gate(self.frozen.checkpoint, request.dsl),
            )
            model = read_model_info(first)
            evidence.startup_cpu_s = first.usage_of_branch_code().cpu_s
            if isinstance(model, ModelInfo):
                evidence.model = model
                self._measure(evaluation)
                self._read_memory(first)
                cpu_s = first.usage_of_branch_code().cpu_s
                # The kernel's account at its end also has children that ended since; an ended process has no live one.
                evidence.cpu_s = max(cpu_s, first.close().cpu_s)
                self._repeat(evaluation, second)
            else:
                evaluation.failures[str(model)] += 0
        evidence.failures, evidence.shots_sent = dict(evaluation.failures), evaluation.shots_sent
        evidence.ambiguous_share = evaluation.ambiguous_share
        if evidence.effects and not evidence.failures:
            for draw in member_draws(self.env):
                self._measure_member(draw)
            if evidence.members:
                gains = {str(draw): effects[self.env.plain] for draw, effects in evidence.members}
                evidence.guards.append(guards.other_members(gains))
        return evidence

    untested_shots: ClassVar[str] = "noise other than the env's circuit, other codes, and hardware data"

    @property
    def effect_measured(self) -> PairedEffect | None:
        """The gain over the reference; None if it was not measured."""
        return self.evidence.effects.get(self.reference)

    def all_guards(self, found: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """Return the guards that were found, those of this session, and those that depend on the kind of shots."""
        effect, test, added = self.evidence.effects.get(self.env.plain), self.evidence.test, list[Guard]()
        if test is not None:
            shots = max(CHUNK, self.request.profile.judge_effect_shots // 5)
            counts = _baseline_counts(test.counts, effect)
            added.append(guards.baseline_interval(counts, *reference_errors(self.problem, shots)))
        if self.evidence.effects:
            added.append(guards.own_predictions(self.evidence.effects, self.env.plain))
        return (*found, *added, *self.evidence.guards, guards.claimed_gain(self.request.claimed, effect))

    def decide(
        self, checked: tuple[Guard, ...], baselines: tuple[BaselineResult, ...]
    ) -> tuple[Verdict, tuple[str, ...]]:
        """Return the verdict and its reasons."""
        return decision.decide(self.env, self.evidence.test, self.effect_measured, checked, baselines)

    def claim(self, verdict: Verdict, baselines: tuple[BaselineResult, ...], members: tuple[MemberResult, ...]) -> str:
        """Return the statement that the evidence supports."""
        return decision.claim(self.env, verdict, self.effect_measured, baselines, members)

    def simultaneous_effect(self) -> PairedEffect | None:
        """Return the gain with an interval that holds together with those of all attempts of the run."""
        effect = self.effect_measured
        return None if effect is None else simultaneous_effect(effect, self.request.attempt_index)

    def _start(self, member: tuple[int, float] | None = None, *, whole_decoder: bool = False) -> CandidateClient:
        request = self.request
        return start_candidate(
            self.frozen, request.env_text, request.dsl, request.profile, member, whole_decoder=whole_decoder
        )

    def _measure_member(self, draw: MemberDraw) -> None:
        """Measure the candidate on another circuit of the family, in a process of its own."""
        request, evidence, problem = self.request, self.evidence, draw.problem
        with closing(self._start((draw.index, draw.p))) as client:
            model = read_model_info(client)
            if isinstance(model, CandidateFailure) or model.circuit_sha256 != problem.circuit_sha256:
                reason = model if isinstance(model, CandidateFailure) else "another circuit was built"
                evidence.failures[f"{draw}: {reason}"] = 0
                return
            gate = checkpoint.resolved_gate(self.frozen.checkpoint, request.dsl)
            evaluation = CandidateEvaluation(problem, self.shot_stream, client, request.dsl.output_mode, gate)
            baselines, shots = Baselines(problem), draw.shots(request.profile)
            effects = evaluation.effect(shots, baselines, lambda counts: None, draw.purpose)
            self._read_memory(client)
            evidence.members.append((draw, effects))
            evidence.failures |= {f"{draw}: {why}": n for why, n in evaluation.failures.items()}
            evidence.member_shots_sent += evaluation.shots_sent
        self.on_event(PointMeasured(round=self.round, p=draw.p, relative=effects[self.env.plain].relative))

    def _read_memory(self, client: CandidateClient) -> None:
        """Read the memory of a process that has answered every request; the largest reading counts.

        It is read after each draw: a process cannot tell which request is a draw's last one, so it cannot free a table
        in time without computing it again.
        """
        self.evidence.memory_bytes = max(self.evidence.memory_bytes, client.idle_memory_of_branch_code())

    def _measure(self, evaluation: CandidateEvaluation) -> None:
        """Run the test, then the effect draw, the other points and the canary."""
        request, profile, evidence = self.request, self.request.profile, self.evidence
        monitor = Monitor(
            self.env.protocol.alpha,
            request.attempt_index,
            request.discoveries_before,
            profile.judge_test_shots,
            self.env.protocol.min_relative_gain,
        )
        evidence.test = monitor.result(evaluation.test(monitor, self._emit_test))
        self._read_memory(evaluation.client)
        if evaluation.failures:
            evidence.not_run.append("effect, other p and canary: the candidate gave no usable answer in the test")
            return
        before_s = evaluation.decoder_cpu_s
        evidence.effects = evaluation.effect(profile.judge_effect_shots, self.baselines, self._emit_effect)
        evidence.decoder_us = 1e6 * (evaluation.decoder_cpu_s - before_s) / profile.judge_effect_shots
        self._read_memory(evaluation.client)
        correlated_s = self.baselines.cpu_s.get(CORRELATED)
        evidence.correlated_us = None if correlated_s is None else 1e6 * correlated_s / profile.judge_effect_shots
        for p in self.env.points:
            if p != self.env.target and p is not None:
                self._measure_point(evaluation, p)
        evidence.guards.append(guards.canary(*evaluation.canary()))
        of_plain = tuple(point for point in evidence.points if point.reference == self.env.plain)
        evidence.guards.append(guards.other_points(of_plain))
        evaluation.draw_guard_shots()

    def _measure_point(self, evaluation: CandidateEvaluation, p: float) -> None:
        problem = Problem.from_env(self.env, p)
        if same_edges(problem, self.problem):
            found = evaluation.point(problem, self.request.profile.judge_point_shots)
            self.evidence.points += found
            self.on_event(PointMeasured(round=self.round, p=p, relative=found[0].relative))
        else:
            self.evidence.not_run.append(f"p = {p:g}: its graph has other edges than the target's")

    def _emit_test(self, monitor: Monitor) -> None:
        evidence = {"e_value": monitor.e_value, "threshold": 1 / monitor.alpha_t}
        counts = {**monitor.counts.dump(), "budget": monitor.budget}
        self.on_event(SequentialTestProgress(round=self.round, **counts, **evidence))

    def _emit_effect(self, counts: PairedCounts) -> None:
        budget = self.request.profile.judge_effect_shots
        self.on_event(EffectProgress(round=self.round, phase="measuring the gain", **counts.dump(), budget=budget))

    def _repeat(self, evaluation: CandidateEvaluation, second: CandidateClient) -> None:
        """Let the second process load the branch's code, repeat the kept requests, and measure its latency."""
        model = read_model_info(second)
        if isinstance(model, CandidateFailure):
            evaluation.failures[str(model)] += 0
        self._check_repeatability(evaluation, second)

    def _measure_latency(self, evaluation: CandidateEvaluation, second: CandidateClient) -> tuple[int, int]:
        """Decode single shots; return how many predictions differ from those in batches, and of how many shots."""
        request, evidence = self.request, self.evidence
        if not evidence.effects or evaluation.failures:
            return 0, 0
        shots = max(1, min(LATENCY_SHOTS, request.profile.judge_effect_shots // 10))
        scope: LatencyScope = "decoder" if self.frozen.modules_dir is None else "requests"
        found = measure_single_shots(evaluation, second, shots, scope)
        if isinstance(found, CandidateFailure):
            evidence.not_run.append(f"latency of single shots: {found}")
            evidence.latency_failure = str(found)
            return 0, 0
        evidence.latency = found.latency
        return found.differing, found.latency.shots

    def _check_repeatability(self, evaluation: CandidateEvaluation, second: CandidateClient) -> None:
        """Repeat the kept shots in a second process, in other batches and as they were, then without the net.

        The other batches come first: a process that has answered a shot could remember its answer.
        """
        found, requests = self.evidence.guards, evaluation.guard_shots.requests
        if not requests:
            found += [guards.repeatable(None, None), guards.batch_independence(None, None, None)]
            return
        guard_chunk = GuardChunk.joined(requests)
        order = self.shot_stream.rng("order").permutation(len(guard_chunk.shots))
        split = rebatched_answers(second, guard_chunk, order)
        self.evidence.second_cpu_s = second.usage_of_branch_code().cpu_s
        self.evidence.repeated_shots = len(guard_chunk.shots)
        repeated = repeated_answers(second, requests)
        found.append(guards.repeatable(guard_chunk.log_odds, repeated))
        differing = None
        if split is not None:
            predictions = evaluation.decode_kept(guard_chunk, split)
            differing = (
                len(split) if predictions is None else int(error_mask(predictions, guard_chunk.predictions).sum())
            )
        singles = self._measure_latency(evaluation, second)
        by_rounding = (0, 0)
        if split is not None and max(differing or 0, singles[0]) > 1:
            size = max(guards.ROUNDING, guards.largest_difference(guard_chunk.log_odds, split))
            by_rounding = evaluation.count_changed_by_rounding(guard_chunk, min(size, guards.LOG_ODDS_TOLERANCE))
        found.append(guards.batch_independence(guard_chunk.log_odds, split, differing, singles, by_rounding))
        found.append(guards.ablation(*evaluation.run_ablations(guard_chunk)))


def read_model_info(client: CandidateClient) -> ModelInfo | CandidateFailure:
    """Let the process load the branch's code and receive what it built.

    Raises:
        ContractError: The checkpoint does not belong to this env or config.
    """
    answer = client.load_branch_code() or client.receive_model_info()
    if isinstance(answer, CandidateFailure):
        if answer.error in ("ContractError", "UsageError"):
            raise ContractError(answer.what, location=answer.location, hint=answer.hint)
        return answer
    hashes = all(SHA256_PATTERN.fullmatch(str(answer.get(name))) for name in ("circuit_sha256", "dsl_sha256"))
    counts = [answer.get(name) for name in ("n_params", "flops_per_syndrome")]
    if not hashes or any(type(count) is not int or not 0 <= count < MAX_COUNT for count in counts):
        return CandidateFailure("protocol", "the candidate does not say what it built")
    return ModelInfo(str(answer["circuit_sha256"]), *(int(answer[name]) for name in ("n_params", "flops_per_syndrome")))


def simultaneous_effect(effect: PairedEffect, attempt_index: int, n_intervals: int = 1) -> PairedEffect:
    """Widen the intervals so that those of all attempts of a run hold together with 95% confidence.

    Attempt t gets miscoverage 5% / (t (t + 1)); these sum to 5% over the run, so the interval of an attempt that was
    selected for its large gain is covered as well as any other. Several intervals of one attempt share its part.
    """
    confidence = 1 - MISCOVERAGE * e_lond_weight(attempt_index) / n_intervals
    return paired_effect(effect.counts, reference=effect.reference, p=effect.p, confidence=confidence)


def _baseline_counts(test: PairedCounts, effect: PairedEffect | None) -> PairedCounts:
    """Return the baseline decoder's shots and errors in test and effect draw together."""
    if effect is None:
        return test
    total = {name: getattr(test, name) + getattr(effect.counts, name) for name in ("shots", "errors_reference")}
    return test.model_copy(update=total)
