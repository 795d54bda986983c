"""Findings of `review-log`: each kind for a run that has it, none for a run that does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.history import HistoryRow
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.base import Message, Request
from autoqec.extensions.language_models.clients.ledger import Ledger, MeteredLM
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.orchestrator.memory import RunMemory
from autoqec.reporting import review_log
from autoqec.reporting.review_log import Finding, review
from autoqec.store import train_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.support import rounds

Made = Callable[..., RunLayout]
COUNTS = {"val_errors_plain": 120, "val_errors_predecoder": 118, "val_fixed": 20, "val_broken": 18}


def config(**mlp: Any) -> dict[str, Any]:
    return PredecoderDSL.model_validate({"type": "mlp", "mlp": mlp}).config()


def unlike(number: int) -> dict[str, Any]:
    """Return configs of one family that differ pairwise in at least three keys."""
    training = {"learning_rate": 0.001 * number, "weight_decay": 0.001 * number, "finetune_gap": 3.0 + number}
    run_with = {"type": "gnn", "gnn": {"hidden": 8 + number}, "training": training}
    return PredecoderDSL.model_validate(run_with).config()


def row(number: int, run_with: dict[str, Any] | None = None, **more: Any) -> HistoryRow:
    run_with = unlike(number) if run_with is None else run_with
    digest = PredecoderDSL.model_validate(run_with).sha256()
    return rounds.row(number, **({"dsl_config": run_with, "dsl_config_sha256": digest, "verify_verdict": None,
                                  "delta_vs_baseline_holdout": None} | more))  # fmt: skip


@pytest.fixture
def run_with(tmp_path: Path) -> Made:
    def make(*rows: HistoryRow, info: dict[str, Any] | None = None, logs: dict[int, str] | None = None) -> RunLayout:
        layout = RunLayout(tmp_path, rounds.RUN_ID)
        layout.root.mkdir(parents=True)
        history = History(layout)
        history.write_info(rounds.info(**(info or {})))
        for config_row in rows:
            layout.round(config_row.round).dir.mkdir(exist_ok=True)
            history.append_row(config_row)
        for number, text in (logs or {}).items():
            layout.round(number).train_log.write_text(text, encoding="utf-8")
        RunMemory(layout.root).rebuild_views()
        return layout

    return make


def kinds(layout: RunLayout) -> dict[str, Finding]:
    """Return the findings by kind; each names existing files only."""
    findings = review(layout)
    assert all((layout.repo_root / path).exists() for finding in findings for path in finding.see)
    return {finding.kind: finding for finding in findings}


def test_faultless_run_has_only_the_budget_finding(run_with: Made) -> None:
    found = kinds(run_with(row(1), row(2)))
    assert set(found) == {"budget"}
    what = found["budget"].what
    assert "6 s of training, measurement and verification" in what and "training of nominated rounds 100%" in what


def test_rounds_on_different_devices_are_flagged(run_with: Made) -> None:
    layout = run_with(
        row(1, device="A100", gpus=1), row(2, device="H100", gpus=1), row(3, device="A100", gpus=1), row(4)
    )
    (found,) = [finding for finding in review(layout) if finding.kind == "mixed-devices"]
    assert "rounds 1, 3 on A100; rounds 2 on H100" in found.what and found.rounds == (1, 2, 3)


def test_rounds_on_one_device_are_not_flagged(run_with: Made) -> None:
    layout = run_with(row(1, device="A100", gpus=1), row(2, device="A100", gpus=1), row(3))
    assert "mixed-devices" not in {finding.kind for finding in review(layout)}


def test_unknown_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        review(RunLayout(tmp_path, rounds.RUN_ID))


def test_repeats_are_named_and_aborted_rounds_are_not_repeats(run_with: Made) -> None:
    lost = row(4, unlike(3), status="orphaned_branch", status_reason="it died", delta_ler=None, checkpoint_path=None)
    found = kinds(run_with(row(1), row(2, unlike(1)), row(3), lost))
    assert found["repeat"].rounds == (1, 2) and found["repeat"].weight == "warning"
    assert found["aborted"].rounds == (4,)


def test_close_configs_without_progress_are_stuck(run_with: Made) -> None:
    near = [row(number, config(hidden=100 + number), delta_ler=0.001) for number in range(2, 8)]
    found = kinds(run_with(row(1, config(hidden=100), delta_ler=0.005), *near))
    assert found["stuck"].rounds == (2, 3, 4, 5, 6, 7) and "round 1" in found["stuck"].what


def test_distant_configs_or_progress_are_not_stuck(run_with: Made) -> None:
    far = [row(number, delta_ler=0.001) for number in range(2, 8)]
    assert "stuck" not in kinds(run_with(row(1, config(), delta_ler=0.005), *far))


def test_progress_is_not_stuck(run_with: Made) -> None:
    assert "stuck" not in kinds(run_with(*(row(number, config(hidden=100 + number)) for number in range(1, 8))))


def test_failures_are_grouped_by_reason_ignoring_numbers(run_with: Made) -> None:
    def failed(number: int, reason: str) -> HistoryRow:
        return row(number, status="compile_error", status_reason=reason, delta_ler=None, checkpoint_path=None)

    layout = run_with(row(1), failed(2, "n_params = 300 exceeds 200"), failed(3, "n_params = 901 exceeds 200"))
    for number in (2, 3):
        layout.round(number).metrics.touch()
    finding = kinds(layout)["failure"]
    assert finding.rounds == (2, 3) and finding.weight == "warning"
    assert finding.see == (f"runs/{rounds.RUN_ID}/round_2/metrics.json", f"runs/{rounds.RUN_ID}/round_3/metrics.json")


FALLING = "".join(f"{step}\t{1 - step / 200}\n" for step in range(100))
FLAT = "".join(f"{step}\t1.0\n" for step in range(100))


def test_falling_loss_without_effect_is_found(run_with: Made) -> None:
    rows = [row(number, **COUNTS) for number in (1, 2, 3)]
    better = row(4, **COUNTS | {"val_errors_predecoder": 60, "val_fixed": 62, "val_broken": 2})
    finding = kinds(run_with(*rows, better, logs={1: FALLING, 2: FALLING, 3: FLAT, 4: FALLING}))["loss-without-effect"]
    assert finding.rounds == (1, 2) and "4000 val shots" in finding.what


def test_validation_gains_not_confirmed_on_fresh_shots_are_found(run_with: Made) -> None:
    fresh = {"verify_verdict": "INCONCLUSIVE", "delta_vs_baseline_holdout": 0.0004, "delta_holdout_high": 0.0008}
    found = kinds(run_with(row(1, delta_ler=0.004, **fresh), row(2, delta_ler=0.004, **fresh), row(3)))
    assert found["overfit-val"].rounds == (1, 2) and "is 10% of it" in found["overfit-val"].what
    assert "interval on fresh shots; the gain on fresh shots" in found["overfit-val"].what
    assert found["inconclusive"].rounds == (1, 2)


def test_verified_branches_without_children_are_found(run_with: Made) -> None:
    verified = {"verify_verdict": "VERIFIED", "delta_vs_baseline_holdout": 0.001}
    used = row(2, **verified)
    child = row(3, fork_from=used.branch, fork_from_canonical=used.branch)
    found = kinds(run_with(row(1, **verified), used, child, row(4), row(5)))
    assert found["idle-branch"].rounds == (1,)


def test_rounds_proposed_by_the_fallback_search_are_found(run_with: Made) -> None:
    rows = (row(1, ideator_source="llm some-model"), row(2, ideator_source="tpe 1"))
    assert kinds(run_with(*rows, info={"ideator": "llm"}))["silent-model"].rounds == (2,)


def test_log_with_missing_rounds_is_found(run_with: Made) -> None:
    layout = run_with(row(1), row(2))
    text = layout.log.read_text(encoding="utf-8")
    layout.log.write_text(text[: text.index("## Round 2")], encoding="utf-8")
    assert kinds(layout)["stale-log"].rounds == (2,)


def test_files_are_read_once_per_round(run_with: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """And configs are compared for the latest rounds only, so that the work grows linearly with the run."""
    layout = run_with(*(row(number, config(hidden=8 + number)) for number in range(1, 121)))
    opened: Counter[str] = Counter()
    read = train_log.read
    monkeypatch.setattr(train_log, "read", lambda path: opened.update([str(path)]) or read(path))
    flattened: list[dict[str, Any]] = []
    flatten = review_log.flatten
    monkeypatch.setattr(review_log, "flatten", lambda config: flattened.append(config) or flatten(config))
    review(layout)
    assert len(opened) == 120 and set(opened.values()) == {1}
    assert len(flattened) <= 120 + review_log.COMPARED_ROUNDS


def test_budget_finding_names_verifier_and_model(run_with: Made) -> None:
    layout = run_with(row(1), row(2, verify_verdict="SUSPICIOUS", verify_wallclock_s=12.0))
    lm = MeteredLM(ScriptedLM(["hello"]), Ledger(layout.ledger))
    lm.complete(Request(messages=(Message(role="user", content="hi"),)))
    what = kinds(layout)["budget"].what
    assert "18 s" in what and "verification 67%" in what and "1 model calls (0 failed)" in what and "$0.0000" in what
