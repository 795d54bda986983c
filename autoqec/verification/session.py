"""One judgement from start to report: two candidate processes, four draws, every guard."""

from __future__ import annotations

import math
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.provenance import SHA256
from autoqec.contracts.timing import utc_now
from autoqec.contracts.verdict import (
    Composition,
    Cost,
    Guard,
    PairedCounts,
    PairedEffect,
    SequentialTest,
    Verdict,
    VerifyReport,
)
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.stats import error_mask, rate
from autoqec.system import machine
from autoqec.verification import artifact, guards
from autoqec.verification.baselines import Baselines, reference_errors
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure
from autoqec.verification.candidate_evaluation import CandidateEvaluation, rebatched_answers, same_edges
from autoqec.verification.composition import evaluate_composition
from autoqec.verification.decision import claim, decide, null_power
from autoqec.verification.sequential import Monitor, log_e_value
from autoqec.verification.shot_stream import CHUNK, ShotStream, commitment

if TYPE_CHECKING:
    from autoqec.verification.verifier import OnEvent, VerifyRequest


SHA256_PATTERN = re.compile(SHA256)
MAX_COUNT = 2**62  # what a count may come to


class VerificationSession:
    """Collects evidence step by step. Steps after a fault of the candidate are left out, and the report says so."""

    def __init__(
        self,
        request: VerifyRequest,
        env: EnvSpec,
        dsl: PredecoderDSL,
        frozen: artifact.FrozenArtifact,
        recorded_circuit: str | None,
        on_event: OnEvent,
    ) -> None:
        self.recorded_circuit = recorded_circuit
        self.request, self.env, self.dsl, self.frozen, self.on_event = request, env, dsl, frozen, on_event
        self.problem = Problem.from_env(env)
        self.shot_stream = ShotStream(request.secret, frozen.sha256, env.seed_policy.holdout, request.shot_cache)
        self.panel = Baselines(self.problem)
        self.test: SequentialTest | None = None
        self.effects: dict[str, PairedEffect] = {}
        self.points: list[PairedEffect] = []
        self.guards: list[Guard] = []
        self.model_info: dict[str, Any] | CandidateFailure = CandidateFailure("closed", "not started")
        self.not_run: list[str] = []
        self.cpu_s = 0.0

    def emit(self, kind: str, payload: dict[str, Any]) -> None:
        self.on_event(kind, {"round": self.request.round.round, **payload})

    def run(self, start_time: float) -> VerifyReport:
        profile, env_text = self.request.profile, self.request.env_text
        with ExitStack() as stack:
            first = artifact.start(self.frozen, env_text, self.dsl, "first", profile)
            stack.callback(first.close)
            second = artifact.start(self.frozen, env_text, self.dsl, "second", profile)
            stack.callback(second.close)
            evaluation = CandidateEvaluation(self.problem, self.shot_stream, first, self.dsl.output_mode)
            self.model_info = read_model_info(first)
            second_info = read_model_info(second)
            if not isinstance(self.model_info, CandidateFailure) and not isinstance(second_info, CandidateFailure):
                cpu_before = first.cpu_s()
                self.run_measurements(evaluation)
                # One that has left by now is counted by the kernel, one that is here by what it used so far.
                self.cpu_s = max(first.cpu_s(), first.close().cpu_s) - cpu_before
                self.check_repeatability(evaluation, second)
            else:
                evaluation.failures[
                    str(self.model_info if isinstance(self.model_info, CandidateFailure) else second_info)
                ] += 0
        return self.report(evaluation, self.cost(evaluation), start_time)

    def run_measurements(self, evaluation: CandidateEvaluation) -> None:
        """Test, then the effect's own draw, the other points and the canaries."""
        request, profile = self.request, self.request.profile
        budget = profile.judge_test_shots
        monitor = Monitor(self.env.protocol.alpha, request.attempt_index, request.discoveries_before, budget)
        self.test = monitor.result(evaluation.test(monitor, self._emit_test))
        if evaluation.failures:
            self.not_run.append("effect, other p and canaries: the candidate gave no usable answer in the test")
            return
        self.effects = evaluation.effect(profile.judge_effect_shots, self.panel, self._emit_effect)
        for p in self.env.points:
            if p != self.env.target and p is not None:
                self._measure_point(evaluation, p)
        self.guards.append(guards.canary(*evaluation.canary()))
        self.guards.append(guards.other_points(tuple(one for one in self.points if one.reference == self.env.plain)))

    def _measure_point(self, evaluation: CandidateEvaluation, p: float) -> None:
        problem = Problem.from_env(self.env, p)
        if same_edges(problem, self.problem):
            found = evaluation.point(problem, self.request.profile.judge_point_shots)
            self.points += found
            self.emit("judge_point", {"p": p, "relative": found[0].relative})
        else:
            self.not_run.append(f"p = {p:g}: its graph has other edges than the target's")

    def _emit_test(self, monitor: Monitor) -> None:
        counts = monitor.counts
        e_value = math.exp(min(log_e_value(counts.fixed, counts.broken), 690.0))
        evidence = {"e_value": e_value, "threshold": 1 / monitor.alpha_t}
        self.emit("judge_test", {**counts.dump(), "budget": monitor.budget, **evidence})

    def _emit_effect(self, counts: PairedCounts) -> None:
        """The published effect's own draw, against the plain backend, as its shots come in."""
        budget = self.request.profile.judge_effect_shots
        self.emit("judge_effect", {"phase": "measuring the gain", **counts.dump(), "budget": budget})

    def check_repeatability(self, evaluation: CandidateEvaluation, second: CandidateClient) -> None:
        """The kept chunk again: in a second process as it was, then in another order; then without the net."""
        guard_chunk = evaluation.guard_chunk
        if guard_chunk is None:
            for guard in (guards.repeatable(None, None), guards.batch_independence(None, None, None)):
                self.guards.append(guard)
            return
        second.send(guard_chunk.shots.detection_events)
        repeated = second.receive(guard_chunk.log_odds.shape[1])
        self.guards.append(
            guards.repeatable(guard_chunk.log_odds, None if isinstance(repeated, CandidateFailure) else repeated)
        )
        order = self.shot_stream.rng("order").permutation(len(guard_chunk.shots))
        split = rebatched_answers(second, guard_chunk, order)
        differing = None
        if split is not None:
            candidate_errors, predictions = evaluation.score_answer(evaluation.backend, guard_chunk.shots, split)
            differing = (
                len(candidate_errors)
                if predictions is None
                else int(error_mask(predictions, guard_chunk.predictions).sum())
            )
        self.guards.append(guards.batch_independence(guard_chunk.log_odds, split, differing))
        self.guards.append(guards.ablation(*evaluation.run_ablations(guard_chunk)))

    def cost(self, evaluation: CandidateEvaluation) -> Cost | None:
        """The count, and the first process's CPU time a shot."""
        if isinstance(self.model_info, CandidateFailure):
            return None
        claimed = self.request.claimed
        return Cost(
            n_params=int(self.model_info["n_params"]),
            flops_per_syndrome=int(self.model_info["flops_per_syndrome"]),
            claimed_n_params=claimed.n_params if claimed else None,
            claimed_flops_per_syndrome=claimed.flops_per_syndrome if claimed else None,
            counted_by="baseline compiler" if self.request.config_only else "candidate sandbox",
            candidate_us_per_shot=1e6 * self.cpu_s / max(1, evaluation.shots_sent),
        )

    def all_guards(self, evaluation: CandidateEvaluation, cost: Cost | None) -> tuple[Guard, ...]:
        circuit = None if isinstance(self.model_info, CandidateFailure) else str(self.model_info["circuit_sha256"])
        fixed = [
            guards.seed_bands(self.env, self.shot_stream.seeds),
            guards.same_circuit(self.problem, circuit, self.recorded_circuit),
            guards.complete(evaluation.failures, evaluation.shots_sent),
            guards.cost(
                cost,
                self.env,
                stored_bytes=artifact.stored_bytes(self.frozen.checkpoint),
                code_bytes=artifact.uncounted_bytes(self.frozen),
                shots=evaluation.shots_sent,
            ),
            guards.first_draw(self.frozen.sha256, self.request.tested_artifacts),
        ]
        if self.test is not None:
            counts = self._reference_counts()
            shots = max(CHUNK, self.request.profile.judge_effect_shots // 5)
            fixed.append(guards.baseline_interval(counts, *reference_errors(self.problem, shots)))
        effect = self.effects.get(self.env.plain)
        if self.effects:
            fixed.append(guards.own_predictions(self.effects, self.env.plain))
        return (*fixed, *self.guards, guards.claimed_gain(self.request.claimed, effect))

    def _reference_counts(self) -> PairedCounts:
        """The plain backend over test and effect together."""
        assert self.test is not None
        counts, effect = self.test.counts, self.effects.get(self.env.plain)
        if effect is None:
            return counts
        return counts.model_copy(
            update={
                "shots": counts.shots + effect.counts.shots,
                "errors_reference": counts.errors_reference + effect.counts.errors_reference,
            }
        )

    def report(self, evaluation: CandidateEvaluation, cost: Cost | None, start_time: float) -> VerifyReport:
        request, effect = self.request, self.effects.get(self.env.plain)
        guards = self.all_guards(evaluation, cost)
        verdict, reasons = decide(self.env, self.test, effect, guards)
        composition_result = self.composition_result(verdict)
        self.emit("judge_verdict", {"verdict": verdict, "reasons": list(reasons)})
        rounds = self.env.code.rounds
        return VerifyReport(
            run_id=request.run_id,
            round=request.round.round,
            round_attempt_id=request.round_attempt_id,
            branch=request.branch,
            commit_sha=request.commit_sha,
            env_name=self.env.name,
            env_yaml_sha256=sha256_bytes(request.env_text.encode()),
            artifact_sha256=self.frozen.sha256,
            verdict=verdict,
            reasons=reasons,
            claim=claim(self.env, verdict, effect),
            backend=self.env.plain,
            decoder_rate=rate(effect.counts.errors_candidate, effect.counts.shots, rounds=rounds) if effect else None,
            effect=effect,
            panel=self.panel.results(self.effects) if self.effects else (),
            points=tuple(self.points),
            test=self.test,
            guards=guards,
            cost=cost,
            composition=composition_result,
            bundle_id=self.shot_stream.id if self.shot_stream.digests else None,
            seeds_commitment=commitment(request.secret),
            chunk_digests=self.shot_stream.digest_lines(),
            sandbox=self.frozen.sandbox_backend,
            versions=machine.versions(),
            not_tested=self.not_tested(effect),
            judge_wallclock_s=time.monotonic() - start_time,
            finished_at=utc_now(),
        )

    def composition_result(self, verdict: Verdict) -> Composition | None:
        """The child beside its parents; a child that failed is not worth comparing."""
        if self.request.no_comparison_reason is not None:
            self.not_run.append(f"synergy with the parents: {self.request.no_comparison_reason}")
        if not self.request.parents:
            return None
        if verdict == "FAILED":
            self.not_run.append("synergy with the parents: the composition failed")
            return None
        found = evaluate_composition(self.frozen, self.request, self.frozen.dir.parent)
        if isinstance(found, str):
            self.not_run.append(found)
            return None
        self.emit("judge_composition", {"verdict": found.verdict, "evidence": found.evidence})
        return found

    def not_tested(self, effect: PairedEffect | None) -> tuple[str, ...]:
        lines = [
            "noise other than the env's circuit, other codes, and hardware data",
            "latency on a real-time system: the cost is counted, not met by a deadline",
            *self.not_run,
        ]
        if len(self.env.points) == 1:
            lines.append("any other operating point: the env names one")
        if effect is not None and (effect.relative_low is None or effect.relative_low <= 0):
            lines.append(f"small gains: {null_power(effect)}")
        if self.request.claimed is None:
            lines.append("the round's own claims of cost and gain: none were given")
        return tuple(lines)


def read_model_info(client: CandidateClient) -> dict[str, Any] | CandidateFailure:
    """What the candidate says it is. ContractError where its checkpoint does not belong to this env or config."""
    model_info = client.receive_model_info()
    if isinstance(model_info, CandidateFailure):
        if model_info.error in ("ContractError", "UsageError"):
            raise ContractError(model_info.what, location=model_info.location, hint=model_info.hint)
        return model_info
    hashes = all(SHA256_PATTERN.fullmatch(str(model_info.get(name))) for name in ("circuit_sha256", "dsl_sha256"))
    counts = (model_info.get(name) for name in ("n_params", "flops_per_syndrome"))
    if not hashes or any(type(count) is not int or not 0 <= count < MAX_COUNT for count in counts):
        return CandidateFailure("protocol", "the candidate does not say what it built")
    return model_info
