"""Compare a composition with its parents: is its gain above, equal to, or below the sum of their gains?

Composition, parents and baseline decoder decode the same shots. These are keyed by the hash of all the artifacts
together, so that none of them can have been fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from autoqec.contracts.provenance import Manifest
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import Composition, CompositionParent, CompositionVerdict
from autoqec.decoders import checkpoint
from autoqec.errors import ContractError, UsageError
from autoqec.qec import backends
from autoqec.qec.problem import Problem
from autoqec.qec.stats import NO_PAIRS, add_pairs, count_pairs, error_mask, paired_effect
from autoqec.store.layout import hidden_from_branch_code
from autoqec.store.round_files import read_contract
from autoqec.verification import artifact
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.candidate.client import CandidateFailure, start_candidate
from autoqec.verification.candidate_evaluation import CandidateEvaluation, ChunkAnswer
from autoqec.verification.request import VerifyRequest
from autoqec.verification.shot_stream import ShotStream, joint_sha256

SHOT_PURPOSE = "composition"
ErrorMasks = list[NDArray[np.bool_]]  # bool [shots] each: baseline decoder, child, parents in order


@dataclass
class Interaction:
    """Sums over shots of d = sum of errors(parent) - (parents - 1) errors(baseline) - errors(child).

    The mean of d is the child's gain over the baseline decoder minus the sum of the parents' gains.
    """

    shots: int = 0
    total: int = 0
    squares: int = 0

    def add(self, error_masks: ErrorMasks) -> None:
        """Add a chunk."""
        plain, child, *parents = (candidate_errors.astype(np.int64) for candidate_errors in error_masks)
        each = sum(parents) - (len(parents) - 1) * plain - child
        self.shots += len(plain)
        self.total += int(each.sum())
        self.squares += int((each * each).sum())

    def interval(self, confidence: float = 0.95) -> tuple[float, float, float]:
        """Return (mean, low, high) of the normal interval with one shot of +1 and one of -1 added.

        For paired proportions this keeps the coverage where few shots differ (Agresti and Min, Statist. Med. 24, 729,
        2005).
        """
        n = self.shots + 2
        center = self.total / n
        spread = math.sqrt(max((self.squares + 2) / n - center * center, 0.0) / n)
        z = float(stats.norm.ppf((1 + confidence) / 2))
        return self.total / self.shots, center - z * spread, center + z * spread


@dataclass
class CompositionCounts:
    """Paired counts: the baseline decoder against each party, and each parent against the child."""

    child: PairedCounts
    parents: list[PairedCounts]
    against: list[PairedCounts]
    interaction: Interaction

    @classmethod
    def of(cls, parents: int) -> CompositionCounts:
        """Return empty counts for a number of parents."""
        return cls(NO_PAIRS, [NO_PAIRS] * parents, [NO_PAIRS] * parents, Interaction())

    def add(self, error_masks: ErrorMasks) -> None:
        """Add a chunk."""
        plain, child, *parents = error_masks
        self.child = add_pairs(self.child, count_pairs(plain, child))
        for index, parent in enumerate(parents):
            self.parents[index] = add_pairs(self.parents[index], count_pairs(plain, parent))
            self.against[index] = add_pairs(self.against[index], count_pairs(parent, child))
        self.interaction.add(error_masks)


def evaluate_composition(child: FrozenArtifact, request: VerifyRequest, directory: Path) -> Composition | str:
    """Compare the frozen child with `request.parents` on the same shots.

    Args:
        child: The composition.
        request: Of the child, with its parents.
        directory: Holds the parents' frozen copies.

    Returns:
        The comparison; or why there is none, if a parent is damaged, changed or of another env, or an answer is
        unusable. The child's own verdict does not depend on it.
    """
    env, requests = request.env, (request, *request.parents)
    problem = Problem.from_env(env)
    totals = CompositionCounts.of(len(request.parents))
    try:
        frozen = [child, *(_freeze(parent, directory) for parent in request.parents)]
        joint_hash = joint_sha256(child.sha256, [parent.sha256 for parent in frozen[1:]])
        shot_stream = ShotStream(request.secret, joint_hash, env.seed_policy.holdout, request.shot_cache)
        for error_masks in _error_masks(problem, shot_stream, frozen, requests):
            totals.add(error_masks)
    except (ContractError, UsageError) as error:
        return f"synergy with the parents: {error.message}"
    parents = []
    for parent, copy, counts, counts_against in zip(
        request.parents, frozen[1:], totals.parents, totals.against, strict=True
    ):
        number = parent.round.round
        effect = paired_effect(counts, reference=env.plain, p=problem.p)
        against = paired_effect(counts_against, reference=f"round {number}", p=problem.p)
        parents.append(
            CompositionParent(
                round=number,
                artifact_sha256=copy.sha256,
                effect=effect,
                against=against,
                beaten=against.delta_low > 0,
            )
        )
    mean, low, high = totals.interaction.interval()
    verdict, evidence = decide_composition(low, high, parents)
    return Composition(
        verdict=verdict,
        evidence=evidence,
        bundle_id=shot_stream.id,
        chunk_digests=shot_stream.digest_lines(),
        effect=paired_effect(totals.child, reference=env.plain, p=problem.p),
        parents=tuple(parents),
        interaction=mean,
        interaction_low=low,
        interaction_high=high,
    )


def decide_composition(low: float, high: float, parents: Sequence[CompositionParent]) -> tuple[CompositionVerdict, str]:
    """Return the verdict and its reason, from the interaction's interval and the comparison with each parent."""
    unbeaten = [str(parent.round) for parent in parents if not parent.beaten]
    if high < 0:
        return "interference", "the gain is below the sum of the parents' gains (upper bound below 0)"
    if low <= 0:
        return "additive", "the gain may be the sum of the parents' gains: the interval of the difference contains 0"
    if unbeaten:
        return "additive", f"more than the sum of the gains, but not shown to beat round {', '.join(unbeaten)}"
    return "synergy", "the gain is above the sum of the parents' gains (lower bound above 0), and each parent is beaten"


def _freeze(parent: VerifyRequest, directory: Path) -> FrozenArtifact:
    """Freeze a parent; raise ContractError unless it is the artifact that was verified."""
    number = parent.round.round
    place = directory / f"parent-{number}"
    place.mkdir()
    hidden = hidden_from_branch_code(parent.round.dir)
    frozen = artifact.freeze(parent.checkpoint, parent.dsl, parent.branch_modules, place, hidden)
    manifest = read_contract(parent.round.manifest, Manifest)
    artifact.check_manifest(manifest, parent.env_sha256, frozen, str(parent.round.manifest))
    if parent.expected_artifact not in (None, frozen.sha256):
        raise ContractError(f"round {number} was verified as {parent.expected_artifact} and is now {frozen.sha256}")
    return frozen


def _error_masks(
    problem: Problem,
    shot_stream: ShotStream,
    frozen: Sequence[FrozenArtifact],
    requests: Sequence[VerifyRequest],
) -> Iterator[ErrorMasks]:
    """Yield the shots that each party decodes wrongly, chunk by chunk, with one process per predecoder.

    Raises:
        ContractError: An answer is unusable.
    """
    profile = requests[0].profile
    plain = backends.make_backend(problem.env.plain, problem)
    with ExitStack() as stack:
        evaluations = []
        for copy, request in zip(frozen, requests, strict=True):
            client = start_candidate(copy, request.env_text, request.dsl, profile)
            stack.callback(client.close)
            dsl = request.dsl
            gate = checkpoint.resolved_gate(copy.checkpoint, dsl)
            evaluations.append(CandidateEvaluation(problem, shot_stream, client, dsl.output_mode, gate))
        for evaluation in evaluations:
            answer = evaluation.client.load_branch_code() or evaluation.client.receive_model_info()
            if isinstance(answer, CandidateFailure):
                raise ContractError(str(answer))
        for chunk in shot_stream.chunks(problem, SHOT_PURPOSE, profile.judge_effect_shots):
            selections = [evaluation.send(evaluation.decoder, chunk.detection_events) for evaluation in evaluations]
            error_masks = [error_mask(plain.decode(chunk.detection_events), chunk.observables)]
            for evaluation, selection in zip(evaluations, selections, strict=True):
                scored = ChunkAnswer(chunk, selection, evaluation.receive(selection))
                candidate_errors, _ = evaluation.score_answer(evaluation.decoder, scored)
                if evaluation.failures:
                    raise ContractError(f"no usable answer: {next(iter(evaluation.failures))}")
                error_masks.append(candidate_errors)
            yield error_masks
