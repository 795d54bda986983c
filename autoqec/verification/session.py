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
from autoqec.qec.stats import rate, wrong
from autoqec.system import machine
from autoqec.verification import artifact, guards
from autoqec.verification.baselines import Panel, reference_errors
from autoqec.verification.candidate.client import Failure, Link
from autoqec.verification.candidate_evaluation import Trial, same_edges, uneven_answers
from autoqec.verification.composition import compose
from autoqec.verification.decision import claim, decide, null_power
from autoqec.verification.sequential import Monitor, log_e_value
from autoqec.verification.shot_stream import CHUNK, Bundle, commitment

if TYPE_CHECKING:
    from autoqec.verification.verifier import OnEvent, VerifyRequest


HASH = re.compile(SHA256)
MOST = 2**62  # what a count may come to


class Session:
    """Collects evidence step by step. Steps after a fault of the candidate are left out, and the report says so."""

    def __init__(
        self,
        request: VerifyRequest,
        env: EnvSpec,
        dsl: PredecoderDSL,
        frozen: artifact.Frozen,
        recorded_circuit: str | None,
        on_event: OnEvent,
    ) -> None:
        self.recorded_circuit = recorded_circuit
        self.request, self.env, self.dsl, self.frozen, self.on_event = request, env, dsl, frozen, on_event
        self.problem = Problem.from_env(env)
        self.bundle = Bundle(request.secret, frozen.sha256, env.seed_policy.holdout, request.shelf)
        self.panel = Panel(self.problem)
        self.test: SequentialTest | None = None
        self.effects: dict[str, PairedEffect] = {}
        self.points: list[PairedEffect] = []
        self.guards: list[Guard] = []
        self.made: dict[str, Any] | Failure = Failure("closed", "not started")
        self.skipped: list[str] = []
        self.cpu_s = 0.0

    def tell(self, kind: str, payload: dict[str, Any]) -> None:
        self.on_event(kind, {"round": self.request.round.round, **payload})

    def run(self, began: float) -> VerifyReport:
        profile, env_text = self.request.profile, self.request.env_text
        with ExitStack() as stack:
            first = artifact.start(self.frozen, env_text, self.dsl, "first", profile)
            stack.callback(first.close)
            second = artifact.start(self.frozen, env_text, self.dsl, "second", profile)
            stack.callback(second.close)
            trial = Trial(self.problem, self.bundle, first, self.dsl.output_mode)
            self.made = built(first)
            other = built(second)
            if not isinstance(self.made, Failure) and not isinstance(other, Failure):
                started = first.cpu_s()
                self.draw(trial)
                # One that has left by now is counted by the kernel, one that is here by what it used so far.
                self.cpu_s = max(first.cpu_s(), first.close().cpu_s) - started
                self.compare(trial, second)
            else:
                trial.faults[str(self.made if isinstance(self.made, Failure) else other)] += 0
        return self.report(trial, self.cost(trial), began)

    def draw(self, trial: Trial) -> None:
        """Test, then the effect's own draw, the other points and the canaries."""
        request, profile = self.request, self.request.profile
        budget = profile.judge_test_shots
        monitor = Monitor(self.env.protocol.alpha, request.attempt_index, request.discoveries_before, budget)
        self.test = monitor.result(trial.test(monitor, self._progress))
        if trial.faults:
            self.skipped.append("effect, other p and canaries: the candidate gave no usable answer in the test")
            return
        self.effects = trial.effect(profile.judge_effect_shots, self.panel, self._drawing)
        for p in self.env.points:
            if p != self.env.target and p is not None:
                self._point(trial, p)
        self.guards.append(guards.canary(*trial.canary()))
        self.guards.append(guards.other_points(tuple(one for one in self.points if one.reference == self.env.plain)))

    def _point(self, trial: Trial, p: float) -> None:
        problem = Problem.from_env(self.env, p)
        if same_edges(problem, self.problem):
            found = trial.point(problem, self.request.profile.judge_point_shots)
            self.points += found
            self.tell("judge_point", {"p": p, "relative": found[0].relative})
        else:
            self.skipped.append(f"p = {p:g}: its graph has other edges than the target's")

    def _progress(self, monitor: Monitor) -> None:
        counts = monitor.counts
        e_value = math.exp(min(log_e_value(counts.fixed, counts.broken), 690.0))
        evidence = {"e_value": e_value, "threshold": 1 / monitor.alpha_t}
        self.tell("judge_test", {**counts.dump(), "budget": monitor.budget, **evidence})

    def _drawing(self, counts: PairedCounts) -> None:
        """The published effect's own draw, against the plain backend, as its shots come in."""
        budget = self.request.profile.judge_effect_shots
        self.tell("judge_effect", {"phase": "measuring the gain", **counts.dump(), "budget": budget})

    def compare(self, trial: Trial, second: Link) -> None:
        """The kept chunk again: in a second process as it was, then in another order; then without the net."""
        kept = trial.kept
        if kept is None:
            for guard in (guards.repeatable(None, None), guards.batch_independence(None, None, None)):
                self.guards.append(guard)
            return
        second.send(kept.shots.detectors)
        again = second.receive(kept.log_odds.shape[1])
        self.guards.append(guards.repeatable(kept.log_odds, None if isinstance(again, Failure) else again))
        order = self.bundle.rng("order").permutation(len(kept.shots))
        split = uneven_answers(second, kept, order)
        differing = None
        if split is not None:
            lost, predictions = trial.candidate_wrong(trial.backend, kept.shots, split)
            differing = len(lost) if predictions is None else int(wrong(predictions, kept.predictions).sum())
        self.guards.append(guards.batch_independence(kept.log_odds, split, differing))
        self.guards.append(guards.ablation(*trial.ablate(kept)))

    def cost(self, trial: Trial) -> Cost | None:
        """The count, and the first process's CPU time a shot."""
        if isinstance(self.made, Failure):
            return None
        claimed = self.request.claimed
        return Cost(
            n_params=int(self.made["n_params"]),
            flops_per_syndrome=int(self.made["flops_per_syndrome"]),
            claimed_n_params=claimed.n_params if claimed else None,
            claimed_flops_per_syndrome=claimed.flops_per_syndrome if claimed else None,
            counted_by="baseline compiler" if self.request.config_only else "candidate sandbox",
            candidate_us_per_shot=1e6 * self.cpu_s / max(1, trial.judged),
        )

    def all_guards(self, trial: Trial, cost: Cost | None) -> tuple[Guard, ...]:
        circuit = None if isinstance(self.made, Failure) else str(self.made["circuit_sha256"])
        fixed = [
            guards.seed_bands(self.env, self.bundle.seeds),
            guards.same_circuit(self.problem, circuit, self.recorded_circuit),
            guards.complete(trial.faults, trial.judged),
            guards.cost(
                cost,
                self.env,
                stored_bytes=artifact.stored_bytes(self.frozen.checkpoint),
                code_bytes=artifact.untold_bytes(self.frozen),
                shots=trial.judged,
            ),
            guards.first_draw(self.frozen.sha256, self.request.judged_before),
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

    def report(self, trial: Trial, cost: Cost | None, began: float) -> VerifyReport:
        request, effect = self.request, self.effects.get(self.env.plain)
        guards = self.all_guards(trial, cost)
        verdict, reasons = decide(self.env, self.test, effect, guards)
        composed = self.composed(verdict)
        self.tell("judge_verdict", {"verdict": verdict, "reasons": list(reasons)})
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
            panel=self.panel.table(self.effects) if self.effects else (),
            points=tuple(self.points),
            test=self.test,
            guards=guards,
            cost=cost,
            composition=composed,
            bundle_id=self.bundle.id if self.bundle.digests else None,
            seeds_commitment=commitment(request.secret),
            chunk_digests=self.bundle.listed(),
            sandbox=self.frozen.tier,
            versions=machine.versions(),
            not_tested=self.not_tested(effect),
            judge_wallclock_s=time.monotonic() - began,
            finished_at=utc_now(),
        )

    def composed(self, verdict: Verdict) -> Composition | None:
        """The child beside its parents; a child that failed is not worth comparing."""
        if self.request.uncompared is not None:
            self.skipped.append(f"synergy with the parents: {self.request.uncompared}")
        if not self.request.parents:
            return None
        if verdict == "FAILED":
            self.skipped.append("synergy with the parents: the composition failed")
            return None
        found = compose(self.frozen, self.request, self.frozen.dir.parent)
        if isinstance(found, str):
            self.skipped.append(found)
            return None
        self.tell("judge_composition", {"verdict": found.verdict, "evidence": found.evidence})
        return found

    def not_tested(self, effect: PairedEffect | None) -> tuple[str, ...]:
        lines = [
            "noise other than the env's circuit, other codes, and hardware data",
            "latency on a real-time system: the cost is counted, not met by a deadline",
            *self.skipped,
        ]
        if len(self.env.points) == 1:
            lines.append("any other operating point: the env names one")
        if effect is not None and (effect.relative_low is None or effect.relative_low <= 0):
            lines.append(f"small gains: {null_power(effect)}")
        if self.request.claimed is None:
            lines.append("the round's own claims of cost and gain: none were given")
        return tuple(lines)


def built(link: Link) -> dict[str, Any] | Failure:
    """What the candidate says it is. ContractError where its checkpoint does not belong to this env or config."""
    made = link.receive_made()
    if isinstance(made, Failure):
        if made.error in ("ContractError", "InputError"):
            raise ContractError(made.what, where=made.where, mend=made.mend)
        return made
    hashes = all(HASH.fullmatch(str(made.get(name))) for name in ("circuit_sha256", "dsl_sha256"))
    counts = (made.get(name) for name in ("n_params", "flops_per_syndrome"))
    if not hashes or any(type(count) is not int or not 0 <= count < MOST for count in counts):
        return Failure("protocol", "the candidate does not say what it built")
    return made
