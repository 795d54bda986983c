"""Attempt lines, rows, pointers and reports of rounds that never ran, for tests of their readers."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.history import AlphaSpent, Begun, HistoryRow, Nominated, Planned, RunInfo
from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import ForkFrom, PairedCounts, RoundMetrics, canonical_fork
from autoqec.contracts.verdict import PairedEffect, VerifyReport

RUN_ID = "20260101-000000"
CONFIG = PredecoderDSL.model_validate({"type": "mlp", "mlp": {}}).config()
HASH = "0" * 64
AT = datetime(2026, 1, 1, tzinfo=UTC)  # of every line of attempts.jsonl


def sha(name: str) -> str:
    """Return a commit id derived from a word."""
    return hashlib.sha1(name.encode()).hexdigest()


def info(**more: Any) -> RunInfo:
    return RunInfo.model_validate(
        {
            "run_id": RUN_ID,
            "env_name": "smoke",
            "env_yaml_sha256": HASH,
            "baseline_sha": sha("baseline"),
            "baseline_ref": "main",
            "profile": "smoke",
            "seed": 1,
            "ideator": "tpe",
            "code_sha256": HASH,
            "package_sha256": HASH,
            "secret_sha256": HASH,
            "versions": {},
            "command_line": (),
        }
        | more
    )


def branch(number: int, slug: str = "try") -> str:
    return f"exp/{RUN_ID}/{number:02d}-{slug}"


def begun(number: int) -> Begun:
    return Begun(round_attempt_id=f"attempt-{number}", round=number, at=AT)


def planned(number: int, fork_from: ForkFrom = "baseline", **more: Any) -> Planned:
    mode = "pure" if isinstance(fork_from, tuple) else None
    speech = IdeatorResponse(
        hypothesis=f"idea {number}",
        slug="try",
        fork_from=fork_from,
        compose_mode=mode,
        proposal=CONFIG,
        source=f"tpe {number}",
    )
    return Planned.model_validate(
        {
            "round_attempt_id": f"attempt-{number}",
            "round": number,
            "branch": branch(number),
            "base_sha": sha("baseline"),
            "fork_from": fork_from,
            "compose_mode": mode,
            "ideator": speech,
            "dsl_config": CONFIG,
            "at": AT,
        }
        | more
    )


def nominated(number: int, verdict: str = "candidate") -> Nominated:
    analyst = AnalystResponse.model_validate(
        {
            "verdict": verdict,
            "summary_1line": f"summary {number}",
            "analysis": f"On 4000 val shots it did {number}.",
            "next_hypothesis_seed": "more of it",
        }
    )
    return Nominated(round_attempt_id=f"attempt-{number}", round=number, analyst=analyst, at=AT)


def charged(number: int) -> AlphaSpent:
    return AlphaSpent(
        round_attempt_id=f"attempt-{number}",
        round=number,
        artifact_sha256=artifact(number),
        attempt_index=number,
        at=AT,
    )


def artifact(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def metrics(number: int, **more: Any) -> RoundMetrics:
    return RoundMetrics.model_validate(
        {
            "status": "ok",
            "delta_ler": 0.001 * number,
            "ler_plain_classical": 0.03,
            "ler_predecoder": 0.03 - 0.001 * number,
            "val_shots": 4000,
            "flops_per_syndrome": 1000 * number,
            "n_params": 100 * number,
            "train_wallclock_s": 2.0,
            "eval_wallclock_s": 1.0,
            "checkpoint_path": f"/nowhere/round_{number}/checkpoint.pt",
        }
        | more
    )


def pointer(number: int, fork_from: ForkFrom = "baseline", **more: Any) -> Pointer:
    return Pointer.model_validate(
        {
            "run_id": RUN_ID,
            "round_idx": number,
            "round_attempt_id": f"attempt-{number}",
            "branch": branch(number),
            "commit_sha": sha(f"code {number}"),
            "fork_from": fork_from,
            "fork_from_canonical": canonical_fork(fork_from),
            "fork_from_ordered": fork_from if isinstance(fork_from, tuple) else None,
            "provenance": {
                "env_yaml_sha256": HASH,
                "dsl_config_sha256": HASH,
                "requirements_fingerprint": "12345678",
                "repo_root_resolved": "/nowhere",
            },
            "metrics_summary": {"delta_vs_parent": None, "flops_per_syndrome": 1, "n_params": 1, "status": "ok"},
            "artifact_paths": {"checkpoint": None, "metrics": "/nowhere/metrics.json", "train_log": None},
        }
        | more
    )


def report(number: int, verdict: str = "VERIFIED", **more: Any) -> VerifyReport:
    effect = PairedEffect(
        reference="mwpm",
        p=0.01,
        counts=PairedCounts(shots=10_000, errors_reference=300, errors_candidate=200, fixed=150, broken=50),
        delta=0.001 * number,
        delta_low=0.0005 * number,
        delta_high=0.0015 * number,
        relative=0.3,
        relative_low=0.2,
        relative_high=0.4,
    )
    return VerifyReport.model_validate(
        {
            "run_id": RUN_ID,
            "round": number,
            "round_attempt_id": f"attempt-{number}",
            "branch": branch(number),
            "commit_sha": sha(f"code {number}"),
            "env_name": "smoke",
            "env_yaml_sha256": HASH,
            "artifact_sha256": artifact(number),
            "verdict": verdict,
            "reasons": ("so it is",),
            "claim": "beats mwpm",
            "backend": "mwpm",
            "decoder_rate": None,
            "effect": effect,
            "panel": (),
            "points": (),
            "test": None,
            "guards": (),
            "cost": None,
            "bundle_id": f"bundle-{number}",
            "seeds_commitment": HASH,
            "sandbox": "none",
            "versions": {},
            "not_tested": (),
            "judge_wallclock_s": 1.0,
        }
        | more
    )


def row(number: int, **more: Any) -> HistoryRow:
    """Return the row of a recorded round, verified by default."""
    return HistoryRow.model_validate(
        metrics(number).dump()
        | {
            "round": number,
            "hypothesis": f"idea {number}",
            "verdict": "candidate",
            "round_attempt_id": f"attempt-{number}",
            "branch": branch(number),
            "commit_sha": sha(f"code {number}"),
            "dsl_config": CONFIG,
            "analysis": f"On 4000 val shots it did {number}.",
            "verify_verdict": "VERIFIED",
            "delta_vs_baseline_holdout": 0.001 * number,
            "paired_eval_bundle_id": f"bundle-{number}",
        }
        | more
    )
