"""Root causes and patched configs, for rounds of a real Runner and for files that a crash left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import autoqec
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL, TrainingConfig, parse_dsl
from autoqec.contracts.round import FailureCause, RoundMetrics, RunnerConfig
from autoqec.decoders.cost_limits import predict_cost
from autoqec.errors import UsageError
from autoqec.reporting.diagnose import diagnose_round, diagnose_run
from autoqec.runner.runner import run_round
from autoqec.store import atomic, files
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout
from tests.support import rounds

SMOKE = Path(autoqec.__file__).parent / "envs" / "builtin" / "smoke.yaml"
MLP = PredecoderDSL.model_validate({"type": "mlp", "mlp": {}}).config()
Left = Callable[..., RoundLayout]


@pytest.fixture(scope="module")
def env() -> str:
    return load_env(SMOKE)[1]


@pytest.fixture
def round_directory(tmp_path: Path) -> Left:
    """Return a function that writes a round directory as a Runner leaves it."""

    def leave(
        config: dict[str, Any] | None = None, log: str | None = None, phase: str = "training", **metrics: Any
    ) -> RoundLayout:
        layout = RoundLayout(tmp_path / "round_1", 1)
        atomic.make_dir(layout.train_dir)
        atomic.write_text(layout.config, files.dump_config(MLP if config is None else config))
        atomic.write_json(layout.metrics, RoundMetrics.model_validate(metrics).dump())
        atomic.write_text(layout.progress, f"Phase,Loss\ntraining,1\n{phase},1\n")
        if log is not None:
            atomic.write_text(layout.train_log, log)
        return layout

    return leave


def with_training(**keys: Any) -> dict[str, Any]:
    return {**MLP, "training": {**MLP["training"], **keys}}


def test_network_above_the_limits_is_shrunk_until_it_fits(tmp_path: Path, env: str) -> None:
    """The real Runner refuses the config and accepts the patched one."""
    wide = {"type": "mlp", "mlp": {"hidden": 4096, "depth": 3}}
    layout = RoundLayout(tmp_path / "round_1", 1)
    metrics = run_round(RunnerConfig(env_yaml=env, predecoder_config=wide, profile="smoke", round_dir=str(layout.dir)))
    assert metrics.status == "compile_error"
    found = diagnose_round(layout, env)
    assert found.cause == "cost limit" and found.config is not None and found.change is not None
    assert set(found.change) == {"mlp.hidden"} and found.change["mlp.hidden"][0] == 4096
    cost = predict_cost(files.parse_env(env, location="env"), parse_dsl(found.config))
    assert cost["n_params"] <= 200_000 and cost["flops_per_syndrome"] <= 2_000_000


def test_unknown_key_is_removed(tmp_path: Path, env: str) -> None:
    layout = RoundLayout(tmp_path / "round_1", 1)
    wrong = {"type": "mlp", "mlp": {"hidden": 128, "width": 3}, "training": {"learning_rate": 7}}
    run_round(RunnerConfig(env_yaml=env, predecoder_config=wrong, profile="smoke", round_dir=str(layout.dir)))
    found = diagnose_round(layout, env)
    assert found.cause == "bad config" and "mlp.width" in found.advice and "training.learning_rate" in found.advice
    assert found.config is not None and found.config["mlp"]["hidden"] == 128
    assert found.config["training"]["learning_rate"] == TrainingConfig().learning_rate


def test_incompatible_parent_suggests_fresh_weights(round_directory: Left, env: str) -> None:
    reason = "training.init: `training.init: parent` needs a fork parent with a checkpoint, and this round has none"
    found = diagnose_round(
        round_directory(
            with_training(init="parent"), status="compile_error", status_reason=reason, failure_cause="does not fit"
        ),
        env,
    )
    assert found.cause == "does not fit" and found.change == {"training.init": ["parent", "fresh"]}


@pytest.mark.parametrize("phase, key", [("training", "learning_rate"), ("finetuning", "finetune_learning_rate")])
def test_non_finite_loss_suggests_a_smaller_step_in_that_phase(round_directory: Left, phase: str, key: str) -> None:
    reason = "the loss is not finite at step 7"
    found = diagnose_round(
        round_directory(status="killed_by_safety", status_reason=reason, failure_cause="not finite", phase=phase)
    )
    assert found.cause == "not finite" and found.change is not None
    ((changed, (old, new)),) = found.change.items()
    assert changed == f"training.{key}" and 0 < new < old / 2


@pytest.mark.parametrize(
    ("config", "cause", "change"),
    [
        (MLP, "out of memory", {"training.batch_size": [512, 256]}),
        (with_training(batch_size=64), "out of memory", {"mlp.hidden": [256, 192]}),
        (MLP, "time limit", {"mlp.hidden": [256, 128]}),
        (MLP, "disk limit", None),
    ],
)
def test_a_limit_of_the_machine_suggests_smaller_batches_or_a_smaller_network(
    round_directory: Left, config: dict[str, Any], cause: str, change: dict[str, list[int]] | None
) -> None:
    found = diagnose_round(round_directory(config, status="killed_by_safety", status_reason=cause, failure_cause=cause))
    assert found.cause == cause and found.change == change


@pytest.mark.parametrize(
    ("gate", "key", "change"),
    [
        (None, "gate", [None, 6.0]),
        (6.0, "gate", [6.0, 4.0]),
        ({"share": 0.1}, "gate.share", [0.1, 0.05]),
        (4.0, "mlp.hidden", [256, 128]),
    ],
)
def test_a_slow_candidate_gets_a_lower_gate_before_a_smaller_network(
    round_directory: Left, env: str, gate: Any, key: str, change: list[Any]
) -> None:
    config = parse_dsl({"type": "mlp", "mlp": {}, "gate": gate}).config()
    failed = {"status": "compile_error", "status_reason": "takes 3 times the limit", "failure_cause": "too slow"}
    found = diagnose_round(round_directory(config, **failed), env)
    assert found.change == {key: change} and "`gate`" in found.advice and "3 times" in found.what


def test_no_gate_is_suggested_without_an_env(round_directory: Left) -> None:
    failed = {"status": "compile_error", "status_reason": "slow", "failure_cause": "too slow"}
    found = diagnose_round(round_directory(MLP, **failed))
    assert found.change is not None and set(found.change) == {"mlp.hidden"}


@pytest.mark.parametrize("cause", get_args(FailureCause))
def test_a_recorded_cause_is_not_read_from_the_text(round_directory: Left, cause: str) -> None:
    """The text is for people and may change."""
    reason = "modules/mlp.py: memory and disk exceeds the env's limit, the loss is not finite"
    found = diagnose_round(round_directory(status="train_error", status_reason=reason, failure_cause=cause))
    assert found.cause == cause and found.advice


def test_a_run_with_a_rejected_proposal_is_diagnosed(tmp_path: Path) -> None:
    """Such a round ended before it was measured, so that its row is all there is of it."""
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.round(1).dir.mkdir(parents=True)
    atomic.write_text(layout.env, load_env(SMOKE)[1])
    history = History(layout)
    history.write_info(rounds.info(env_yaml_sha256=sha256_bytes(layout.env.read_bytes())))
    ended = {"status": "compile_error", "status_reason": "the ideator's reply: no type", "failure_cause": "bad config"}
    row = rounds.row(1, **ended, branch=None, commit_sha=None, verify_verdict=None, verdict="ignore")
    history.append_row(row)
    (found,) = diagnose_run(layout)
    assert (found.round, found.cause) == (1, "bad config")


def test_broken_env_takes_precedence_over_other_causes(round_directory: Left, env: str) -> None:
    broken = env.replace("rounds: 3", "rounds: 3\n  spare: 1")
    found = diagnose_round(
        round_directory(status="compile_error", status_reason="n_params exceeds the env's limit"), broken
    )
    assert found.cause == "env broken" and "spare" in found.what


def test_measured_round_has_no_failure_cause(round_directory: Left) -> None:
    ok = {"status": "ok", "delta_ler": 0.0, "checkpoint_path": "x", "val_shots": 4000, "val_errors_plain": 100}
    hard = {**MLP, "output_mode": "hard_flip"}
    worse = ok | {"val_errors_predecoder": 190, "val_fixed": 5, "val_broken": 95}
    found = diagnose_round(round_directory(hard, **worse))
    assert found.cause == "does harm" and found.change == {"output_mode": ["hard_flip", "soft_priors"]}
    assert "soft_priors" in found.advice
    same = ok | {"val_errors_predecoder": 98, "val_fixed": 12, "val_broken": 10}
    found = diagnose_round(round_directory(with_training(finetune_share=0.0), **same))
    assert found.cause == "no effect" and found.change == {"training.finetune_share": [0.0, 1.0]}
    assert "finetune_share" in found.advice
    better = ok | {"val_errors_predecoder": 40, "val_fixed": 62, "val_broken": 2}
    assert diagnose_round(round_directory(**better)).cause == "none"


SAME = {
    "status": "ok", "delta_ler": 0.0, "checkpoint_path": "x", "val_shots": 4000, "val_errors_plain": 100,
    "val_errors_predecoder": 98, "val_fixed": 12, "val_broken": 10,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "profile", "words"),
    [
        (with_training(finetune_share=1.0), "smoke", "--profile dev"),
        (with_training(finetune_share=1.0), "prod", "no profile is larger"),
        ({**with_training(finetune_share=0.0), "output_mode": "hard_flip"}, "dev", "--profile prod"),
    ],
)
def test_advice_that_is_followed_already_is_not_given(
    round_directory: Left, config: dict[str, Any], profile: str, words: str
) -> None:
    found = diagnose_round(round_directory(config, **SAME), profile=profile)
    assert found.cause == "no effect" and words in found.advice and "finetune_share" not in found.advice
    assert found.change is None


def test_network_that_changes_nothing_is_named(round_directory: Left) -> None:
    unchanged = SAME | {"val_errors_predecoder": 100, "val_fixed": 0, "val_broken": 0}
    assert "changed the outcome of no shot" in diagnose_round(round_directory(**unchanged)).what


def test_losses_of_two_phases_are_not_mixed(round_directory: Left) -> None:
    """A loss of fine-tuning that begins lower than that of training is no fall of the training loss."""
    layout = round_directory(**SAME)
    rows = [f"training,{n},{5.0 - 0.01 * n}" for n in range(20)] + [f"finetuning,{n},0.25" for n in range(20)]
    atomic.write_text(layout.progress, "\n".join(["Phase,CumUpdates,lossAverage", *rows]))
    assert "the loss of training fell by 4%; the loss of finetuning fell by 0%" in diagnose_round(layout).what


def test_directory_without_metrics_is_an_aborted_round(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no metrics\.json"):
        diagnose_round(RoundLayout(tmp_path, 1))


def run_of(tmp_path: Path, env: str, **info: Any) -> RunLayout:
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    atomic.make_dir(layout.root)
    atomic.write_text(layout.env, env)
    history = History(layout)
    history.write_info(rounds.info(env_yaml_sha256=sha256_bytes(env.encode()), **info))
    no = {"status": "train_error", "status_reason": "the child ended with signal 9", "delta_ler": None}
    failed = rounds.metrics(1, **no)
    lost = {"status": "orphaned_branch", "status_reason": "it died", "verify_verdict": None}
    for row in (
        rounds.row(1, **failed.dump() | {"verify_verdict": None}),
        rounds.row(2, **lost),
        rounds.row(3, status="compose_conflict", status_reason="both", branch=None, commit_sha=None,
                   verify_verdict=None, conflicting_files=("predecoder.yaml",)),
        rounds.row(4),
    ):  # fmt: skip
        atomic.make_dir(layout.round(row.round).dir)
        metrics = {name: value for name, value in row.dump().items() if name in RoundMetrics.model_fields}
        atomic.write_json(layout.round(row.round).metrics, metrics)
        atomic.write_text(layout.round(row.round).config, files.dump_config(MLP))
        history.append_row(row)
    return layout


def test_run_lists_every_failed_round(tmp_path: Path, env: str) -> None:
    found = diagnose_run(run_of(tmp_path, env))
    assert [(finding.round, finding.cause) for finding in found] == [(1, "crash"), (2, "aborted"), (3, "conflict")]
    json.dumps([finding.dump() for finding in found])


def test_env_that_was_changed_after_the_start_is_the_root_cause(tmp_path: Path, env: str) -> None:
    layout = run_of(tmp_path, env)
    layout.env.write_text(env + "\n# a late thought\n", encoding="utf-8")
    (found,) = diagnose_run(layout)
    assert found.cause == "env broken" and "run.json" in found.what
