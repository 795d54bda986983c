"""Verification of a gated predecoder: the verifier decodes as the deployed decoder does, and measures its gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from autoqec.verification.candidate_evaluation import GUARD_SHOTS
from autoqec.verification.shot_stream import CHUNK
from autoqec.verification.verifier import verify
from tests.support import verification as support
from tests.unit.verification.test_verifier import ENV


@pytest.mark.parametrize("gate", [4.0, pytest.param({"share": 0.3}, marks=pytest.mark.long)])
def test_gated_predecoder_is_verified_with_its_ambiguous_share(tmp_path: Path, gate: Any) -> None:
    problem, config = Problem.from_env(ENV), {**support.CONFIG, "gate": gate}
    path = tmp_path / "checkpoint.pt"
    support.train(path, problem, steps=1_000, config=config)
    request = support.request(
        tmp_path / "round_1", ENV, path, profile=support.profile(60_000, 30_000), dsl_config=config
    )
    report = verify(request)
    assert report.verdict == "VERIFIED", report.reasons
    decoder = CheckpointDecoder.of(ENV, path)
    shots = sample(problem, 50_000, 9)
    errors = (decoder.decode(shots.detection_events) != shots.observables).any(axis=1)
    assert decoder.decoder.gate is not None and report.cost is not None and report.cost.ambiguous_share is not None
    share = decoder.decoder.gate.ambiguous_share
    assert abs(report.cost.ambiguous_share - share) < 5 * np.sqrt(share / 30_000)
    expected = report.cost.ambiguous_share * report.cost.flops_per_syndrome
    assert 0 <= report.cost.expected_flops_per_syndrome - expected < 1 and share < 0.6
    assert report.effect is not None
    rate = report.effect.counts.errors_candidate / report.effect.counts.shots
    assert abs(rate - errors.mean()) < 5 * np.sqrt(rate / 30_000)
    repeated = next(guard for guard in report.guards if guard.name == "repeatable")
    assert repeated.passed and GUARD_SHOTS <= int(repeated.evidence.split()[0]) < GUARD_SHOTS + CHUNK
    assert "on average under the gate" in (request.round.dir / "verification_report.md").read_text()
