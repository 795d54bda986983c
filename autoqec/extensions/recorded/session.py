"""Measure one candidate on sealed blocks of recorded shots, which only this process opens.

The candidate at position t of the run's stream is tested on the t-th part of the sealed blocks, once: no later
candidate depends on the shots that it will be tested on. Per block the candidate is paired with every baseline on the
same shots (`block_comparison`). Predictions of other decoders that the env names as `recorded:NAME` are
read from their files, which no sandbox can reach, and are baselines like the others. The null hypothesis "not better
than some baseline by the minimum gain" is rejected if each baseline's e-value reaches the level of e-LOND, so the
smallest e-value is the evidence. The report's effect is against the strongest baseline, the one with the fewest errors
on these blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from autoqec.contracts.env import CORRELATED
from autoqec.contracts.events import EffectProgress, OnEvent
from autoqec.contracts.verdict import (
    BaselineResult,
    Guard,
    MemberResult,
    PairedEffect,
    RecordedEvidence,
    SequentialTest,
    StoppedBy,
    Verdict,
)
from autoqec.errors import UsageError
from autoqec.extensions.recorded import decision
from autoqec.extensions.recorded.block_comparison import BlockCounts
from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.extensions.recorded.decoding import PredictedSpan
from autoqec.extensions.recorded.env import open_checked
from autoqec.extensions.recorded.shots import SILENT, Progress, RecordedShots, Span
from autoqec.extensions.recorded.split import Split
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack
from autoqec.store.layout import recorded_location
from autoqec.verification import guards
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.candidate_evaluation import CandidateEvaluation
from autoqec.verification.request import VerifyRequest
from autoqec.verification.sequential import e_lond_level, e_lond_weight
from autoqec.verification.session import MISCOVERAGE, Evidence, VerificationSession
from autoqec.verification.shot_stream import SEALED, ShotStream

MAX_LOG_E = 690.0  # JSON has no infinity
PART_SHOTS = 16_384  # memory does not depend on the size of the blocks, which grows with the recording


@dataclass
class SealedStream(ShotStream):
    """Recorded test blocks for the purpose `SEALED`, sampled shots for all others."""

    recorded: RecordedShots | None = None
    counts: tuple[int, ...] = ()
    span: Span = (0, 0)
    block_shots: int = 1
    part_shots: int | None = None
    progress: Progress = SILENT

    def chunks(self, problem: Problem, purpose: str, shots: int) -> Iterator[Shots]:
        """Read the blocks of the span for `SEALED`, long blocks in parts; else see `ShotStream.chunks`."""
        if purpose != SEALED:
            yield from super().chunks(problem, purpose, shots)
            return
        assert self.recorded is not None
        parts = self.recorded.span(self.counts, self.span, self.block_shots, self.part_shots, self.progress)
        index, read, content, flips = self.span[0] // self.block_shots, 0, hashlib.sha256(), bytearray()
        for part in parts:
            content.update(part.detection_events.tobytes())
            flips += pack(part.observables).tobytes()
            read += len(part)
            if read == self.block_shots:
                content.update(flips)  # as in `shot_stream.shot_bytes` of the whole block
                self.digests[f"{SEALED}/{index}"] = content.hexdigest()
                index, read, content, flips = index + 1, 0, hashlib.sha256(), bytearray()
            yield part


class RecordedSession(VerificationSession):
    """Collects the evidence on one frozen artifact on the part of the sealed blocks that its attempt index names.

    Attributes:
        code: The env's code source.
        split: Division of the recorded shots.
        span: The part's shots; None if all parts are spent.
        counts: Paired errors per block, by name of the baseline.
    """

    def __init__(self, request: VerifyRequest, frozen: FrozenArtifact, on_event: OnEvent) -> None:
        reason = "sealed shots are not spent on a comparison with the parents" if request.parents else None
        request = replace(request, parents=(), no_comparison_reason=reason or request.no_comparison_reason)
        super().__init__(request, frozen, on_event)
        self.code = RecordedShotsCode.of(self.env)
        self.split = Split.of(self.code)
        self.span = self.split.part(request.attempt_index)
        self.counts: dict[str, BlockCounts] = {}
        self._predicted: PredictedSpan | None = None
        if self.span is not None:
            progress = Progress(on_event)
            opened = open_checked(self.env, _directory(request.round.dir), progress=progress)
            others = self.env.predicted_by
            counts = self.code.files.shots
            self._predicted = PredictedSpan(opened, counts, self.span, others, progress)
            self.shot_stream = SealedStream(
                request.secret,
                frozen.sha256,
                self.env.seed_policy.holdout,
                request.shot_cache,
                recorded=opened,
                counts=counts,
                span=self.span,
                block_shots=self.code.block_shots,
                part_shots=PART_SHOTS,
                progress=progress,
            )

    def run(self) -> Evidence:
        """Run every step that the candidate's answers allow; none if no sealed blocks are left."""
        if self.span is not None:
            return super().run()
        last = self.split.part(self.split.candidates)
        assert last is not None
        self.evidence.recorded = self._spent(first_block=last[1] // self.split.block_shots, blocks=0)
        self.evidence.not_run.append("every step: no sealed blocks are left")
        return self.evidence

    untested_shots = "shots of other times, devices and codes, and looks of other runs at the same test blocks"

    def all_guards(self, found: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """Return the guards; the first draw alone if nothing was measured.

        Device shots have no independent draw to compare a rate with, and rates drift after the validation blocks.
        """
        if self.span is None:
            return tuple(guard for guard in found if guard.name == "first_draw")
        inner = "mwpm_estimated" if self.code.priors == "estimated" else self.env.plain
        effects = self.evidence.effects
        own = (guards.own_predictions(effects, inner),) if effects else ()
        return (*found, *own, *self.evidence.guards)

    def decide(
        self, checked: tuple[Guard, ...], baselines: tuple[BaselineResult, ...]
    ) -> tuple[Verdict, tuple[str, ...]]:
        """Return the verdict and its reasons."""
        assert self.evidence.recorded is not None
        test, effect, spent = self.evidence.test, self.effect_measured, self.evidence.recorded
        return decision.decide_recorded(self.env, test, effect, checked, spent, baselines)

    def claim(self, verdict: Verdict, baselines: tuple[BaselineResult, ...], members: tuple[MemberResult, ...]) -> str:
        """Return the statement that the evidence supports."""
        assert self.evidence.recorded is not None
        return decision.claim_recorded(self.env, verdict, self.effect_measured, self.evidence.recorded)

    def simultaneous_effect(self) -> PairedEffect | None:
        """Return the gain with an interval that holds together with those of all attempts of the run."""
        measured = self.effect_measured
        return None if measured is None else self.effect(measured.reference, simultaneous=True)

    def _spent(self, first_block: int, blocks: int) -> RecordedEvidence:
        left = max(self.split.candidates - self.request.attempt_index, 0)
        return RecordedEvidence(
            block_shots=self.code.block_shots,
            first_block=first_block,
            blocks=blocks,
            blocks_left=left * self.split.part_blocks,
            candidates_left=left,
        )

    def _measure(self, evaluation: CandidateEvaluation) -> None:
        """Test on the blocks, then run the canary, on sampled shots."""
        assert self.span is not None and self._predicted is not None
        evidence, shots = self.evidence, self.span[1] - self.span[0]
        self.counts = {name: BlockCounts(self.code.block_shots) for name in self.baselines.names}
        before_s = evaluation.decoder_cpu_s
        with closing(evaluation.answers(evaluation.decoder, self.problem, SEALED, shots)) as answers:
            for answer in answers:
                candidate_errors, predictions = evaluation.score_answer(evaluation.decoder, answer)
                predicted = self._predicted.wrong_shots(answer.shots.observables)
                for name, errors in (self.baselines.error_mask(answer.shots) | predicted).items():
                    self.counts[name].add(errors, candidate_errors)
                counts = self.counts[self.env.plain].totals()
                phase = "measuring the gain"
                self.on_event(EffectProgress(round=self.round, phase=phase, **counts.dump(), budget=shots))
                if evaluation.failures:
                    break
                evaluation.keep_for_guards(answer, predictions)
        self._read_memory(evaluation.client)
        evidence.test, evidence.recorded = self._test(failed=bool(evaluation.failures))
        if evaluation.failures:
            evidence.not_run.append("effect and canary: the candidate gave no usable answer in the test")
            return
        evidence.effects = {name: self.effect(name) for name in self.counts}
        evidence.decoder_us = 1e6 * (evaluation.decoder_cpu_s - before_s) / shots
        evidence.correlated_us = 1e6 * self.baselines.cpu_s[CORRELATED] / shots
        evidence.guards.append(guards.canary(*evaluation.canary()))
        spent = evidence.recorded
        message = (
            f"{len(self.code.files.files)} files have the hashes of the run's env; blocks {spent.first_block} to "
            f"{spent.first_block + spent.blocks - 1} of {self.code.block_shots} shots, which no earlier candidate saw"
        )
        evidence.guards.append(Guard(name="recorded_files", passed=True, evidence=message))
        evaluation.draw_guard_shots()

    def _test(self, failed: bool) -> tuple[SequentialTest, RecordedEvidence]:
        """Return the test with the smallest e-value, the counts against the strongest baseline, and what was spent."""
        assert self.span is not None
        request = self.request
        gain = self.env.protocol.min_relative_gain
        log_e = {name: counts.log_e_value(gain) for name, counts in self.counts.items()}
        least = min(log_e.values())
        self.reference = min(self.counts, key=lambda name: (self.counts[name].totals().errors_reference, name))
        found = self.counts[self.reference].effect()
        alpha_t = e_lond_level(self.env.protocol.alpha, request.attempt_index, request.discoveries_before)
        log_harm = self.counts[self.env.plain].log_e_value(harm=True)
        stopped_by: StoppedBy = "budget"
        if failed:
            stopped_by = "guard"
        elif log_harm >= -math.log(self.env.protocol.alpha):
            stopped_by = "harm"
        elif least >= -math.log(alpha_t) and not found.blocks_too_short:
            stopped_by = "evidence"
        test = SequentialTest(
            counts=self.counts[self.reference].totals(),
            e_value=_exp(least),
            e_value_harm=_exp(log_harm),
            threshold=1 / alpha_t,
            alpha_t=alpha_t,
            attempt_index=request.attempt_index,
            discoveries_before=request.discoveries_before,
            stopped_by=stopped_by,
            min_relative_gain=gain,
        )
        spent = self._spent(self.span[0] // self.code.block_shots, self.split.part_blocks)
        more = {"e_values": {name: _exp(value) for name, value in log_e.items()}}
        correlation = {"autocorrelation": found.autocorrelation, "blocks_too_short": found.blocks_too_short}
        return test, spent.model_copy(update=more | correlation)

    def effect(self, name: str, *, simultaneous: bool = False) -> PairedEffect:
        """Return the gain over a baseline, with an interval that holds under drift.

        Args:
            name: The baseline.
            simultaneous: Widen the interval so that those of all attempts of a run hold together with 95% confidence.
        """
        share = e_lond_weight(self.request.attempt_index) if simultaneous else 1.0
        counts = self.counts[name].totals()
        found = self.counts[name].effect(1 - MISCOVERAGE * share)
        rate = counts.errors_reference / counts.shots
        known = found.relative is not None
        return PairedEffect(
            reference=name,
            p=None,
            counts=counts,
            delta=(counts.fixed - counts.broken) / counts.shots,
            delta_low=found.low * rate,
            delta_high=found.high * rate,
            relative=found.relative,
            relative_low=found.low if known else None,
            relative_high=found.high if known else None,
        )


def _directory(round_dir: Path) -> Path:
    """Return the directory of the run's recorded shots; UsageError if it is not known or does not exist."""
    location = recorded_location(round_dir)
    hint = f"name their directory: autoqec verify {round_dir} --recorded DIR"
    try:
        directory = Path(location.read_text(encoding="utf-8").strip())
    except OSError as error:
        message = f"the place of the recorded shots is not known ({error.strerror})"
        raise UsageError(message, location=str(location), hint=hint) from error
    if not directory.is_dir():
        raise UsageError("the recorded shots are not here", location=str(directory), hint=f"restore them, or {hint}")
    return directory


def _exp(value: float) -> float:
    return math.exp(min(value, MAX_LOG_E))
