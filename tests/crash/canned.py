"""A fake Runner and verifier that return at once and write the files that the real ones write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.messages import AnalystResponse
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.contracts.verdict import VerifyReport
from autoqec.contracts.views import AnalystView
from autoqec.errors import ContractError
from autoqec.orchestrator import run_checks
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout
from tests.support import rounds

if TYPE_CHECKING:
    from autoqec.verification.verifier import VerifyRequest


def run_round(config: RunnerConfig, *, on_event: Any = None) -> RoundMetrics:
    from autoqec.runner.provenance import write_round_pointer

    layout = RoundLayout(Path(config.round_dir), config.round_idx)
    atomic.make_dir(layout.dir)
    atomic.write_text(layout.config, files.dump_config(config.predecoder_config))
    try:
        parse_dsl(config.predecoder_config)
    except ContractError as error:
        metrics = RoundMetrics(status="compile_error", status_reason=str(error))
    else:
        atomic.write_bytes(layout.checkpoint, f"weights of round {config.round_idx}".encode())
        atomic.write_text(layout.train_log, "0\t1.0\n")
        metrics = rounds.metrics(config.round_idx, checkpoint_path=str(layout.checkpoint))
    atomic.write_json(layout.metrics, metrics.dump())
    write_round_pointer(config, metrics, repo_root=Path(config.round_dir).parents[2])
    return metrics


def artifact_sha256(request: VerifyRequest) -> str:
    return sha256_bytes(request.checkpoint.read_bytes())


def verify(request: VerifyRequest, *, verdict: str = "VERIFIED", on_event: Any = None) -> VerifyReport:
    named = ("run_id", "round_attempt_id", "branch", "commit_sha")
    report = rounds.report(
        request.round.round,
        verdict,
        artifact_sha256=artifact_sha256(request),
        **{name: getattr(request, name) for name in named},
    )
    atomic.write_text(request.round.report_md, "# A report\n")
    atomic.write_json(request.round.report_json, report.dump())
    return report


def analyse(view: AnalystView) -> AnalystResponse:
    ok = '"status": "ok"' in view.metrics_path.read_text(encoding="utf-8")
    return rounds.nominated(1, "candidate" if ok else "ignore").analyst


def install(
    set_attribute: Callable[[Any, str, Any], None] = setattr,
    *,
    verdict: Callable[[int], str] = lambda number: "VERIFIED",
) -> None:
    """Replace Runner and verifier with the fakes, before the loop starts.

    set_attribute: A test's `monkeypatch.setattr`, so that they are removed again. verdict: Of a round, by its number.
    """
    from autoqec.runner import runner
    from autoqec.verification import verifier

    set_attribute(runner, "run_round", run_round)
    set_attribute(verifier, "artifact_sha256", artifact_sha256)
    set_attribute(
        verifier, "verify", lambda request, **more: verify(request, verdict=verdict(request.round.round), **more)
    )
    options = run_checks.NetworkOptions("other_sector", gate_available=False)
    set_attribute(run_checks, "check_env", lambda *inputs, **named: options)
