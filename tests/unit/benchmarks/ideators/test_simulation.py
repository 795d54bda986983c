"""QECBench-Tab: exact replay of shots, scores, controls, and building a table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import FAMILIES, parse_dsl
from autoqec.contracts.views import IdeatorView
from autoqec.decoders import flops
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import UsageError
from autoqec.ideators import space
from autoqec.qec.stats import count_pairs
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.evaluate import decode_both
from benchmarks import qecbench_tab
from benchmarks.ideators import simulation
from benchmarks.ideators import table as bench_table
from benchmarks.ideators.__main__ import main
from benchmarks.ideators.compare import Oracle, compare, strategy
from benchmarks.ideators.simulation import SimulationSettings, hypervolume, simulate
from benchmarks.ideators.table import Table, TableEntry, mirror_params, pack, unpack
from benchmarks.qecbench_tab import sample_configs

SHOTS = 40_000
SETTINGS = SimulationSettings(rounds=20, val_shots=4_000)


def planted(count: int = 160) -> Table:
    """A table in which small learning rates gain and some configs fail to train."""
    rng, plain = np.random.default_rng(0), np.random.default_rng(1).random(SHOTS) < 0.05
    entries = []
    for config in sample_configs(count, "a fixture"):
        params = space.params_of(config)
        assert params is not None
        gain = 0.5 * (1 - np.log(params["training.learning_rate"] / 5e-4) / np.log(20)) + 0.1 * rng.standard_normal()
        failures = (plain & (rng.random(SHOTS) > gain)) | (~plain & (rng.random(SHOTS) < 0.002))
        failed = rng.random() < 0.1
        entries.append(
            TableEntry(config, params, "train_error" if failed else "ok", "it broke" if failed else None,
                 int(rng.integers(1_000, 200_000)), int(rng.integers(2_000, 2_000_000)), float(rng.random() * 9 + 1),
                 None if failed else np.flatnonzero(failures ^ plain))
        )  # fmt: skip
    return Table(entries, plain, env="planted")


@pytest.fixture(scope="module")
def table() -> Table:
    return planted()


def test_pack_and_unpack_are_inverse() -> None:
    bits = np.random.default_rng(0).random(1003) < 0.03
    assert (unpack(pack(bits), 1003) == bits).all() and len(pack(bits)) < 400


def test_counts_on_a_slice_match_the_bitmaps(table: Table) -> None:
    index = next(index for index, entry in enumerate(table.entries) if entry.differing_shots is not None)
    differing = table.entries[index].differing_shots
    assert differing is not None
    differing_shots = np.isin(np.arange(SHOTS), differing)
    ends = int(differing[5]), int(differing[90])
    for part in (slice(*ends), slice(ends[0], ends[1] + 1), slice(SHOTS // 2, None), slice(0, None)):
        assert table.counts(index, part) == count_pairs(table.baseline[part], (table.baseline ^ differing_shots)[part])


def test_hypervolume_against_counting() -> None:
    rng = np.random.default_rng(3)
    points = [tuple(map(float, row)) for row in rng.random((7, 3))]
    inside = rng.random((200_000, 3))
    covered = np.zeros(len(inside), bool)
    for point in points:
        covered |= (inside <= np.asarray(point)).all(axis=1)
    assert hypervolume(points) == pytest.approx(covered.mean(), abs=0.005)  # type: ignore[arg-type]


def test_slots_hide_the_results_of_running_rounds(table: Table) -> None:
    """Round n sees what the loop shows with 4 slots: rows up to n - 4, and 3 pending rounds without figures."""
    views: list[IdeatorView] = []

    def watched(view: IdeatorView) -> Any:
        views.append(view)
        return strategy("random", table, SETTINGS)(view)

    run = simulate(watched, table, seed=0, settings=SimulationSettings(rounds=10, slots=4))
    for number, view in enumerate(views, start=1):
        assert [row["round"] for row in view.history] == list(range(1, max(number - 3, 1)))
        assert [row["round"] for row in view.pending] == list(range(max(number - 3, 1), number))
        assert all(row["status"] is None and row["delta_ler"] is None for row in view.pending)
        assert all(row["dsl_config"] and not row["forkable"] for row in view.pending)
    took = np.diff([0.0, *run.seconds])
    assert run.elapsed[0] == took[0] and run.elapsed == sorted(run.elapsed)
    assert run.elapsed[4] == pytest.approx(max(run.elapsed[3], run.elapsed[0] + took[4]))
    assert run.elapsed[-1] < run.seconds[-1]
    serial = simulate(watched, table, seed=0, settings=SimulationSettings(rounds=10))
    assert serial.elapsed == pytest.approx(serial.seconds)
    assert serial.hypervolume_at(serial.elapsed[4]) == serial.hypervolume[4] and serial.hypervolume_at(-1.0) == 0.0


def test_verification_uses_other_shots_than_validation(table: Table) -> None:
    """A decoder that is good on validation shots alone is not verified."""
    half = SHOTS // 2
    lucky = table.baseline.copy()
    lucky[:half] = False
    entry = table.entries[0]
    differing = np.flatnonzero(lucky ^ table.baseline)
    cheat = TableEntry(entry.config, entry.params, "ok", None, 1000, 1000, 1.0, differing)
    run = simulate(
        strategy("random", table, SETTINGS),
        Table([cheat], table.baseline),
        seed=0,
        settings=SimulationSettings(rounds=1),
    )
    assert run.verified == 0 and run.hypervolume == [0.0]


def test_missing_answer_fails_its_round(table: Table) -> None:
    run = simulate(lambda view: None, table, seed=0, settings=SimulationSettings(rounds=5))
    assert run.hypervolume == [0.0] * 5 and run.seconds == [0.0] * 5


def test_hybrid_improves_with_the_quality_of_the_oracle(table: Table) -> None:
    names = ["tpe", "hybrid:none", "hybrid:0", "hybrid:1"]
    held = compare(table, names, seeds=6, settings=SETTINGS, references=("random", "tpe"))
    assert [score.strategy for score in held[::2]] == ["random", *names]
    scores = {score.strategy: score for score in held if score.reference == "random"}
    beyond = {score.strategy: score.gap for score in held if score.reference == "tpe"}
    assert beyond["tpe"] == beyond["hybrid:none"] == 0.0, "without answers it is its search"
    assert all(beyond[name] == pytest.approx(scores[name].gap - scores["tpe"].gap) for name in beyond)
    assert scores["hybrid:1"].final > scores["tpe"].final and scores["hybrid:1"].mean > scores["tpe"].mean
    assert scores["hybrid:0"].final > 0.5 * scores["tpe"].final, "a useless oracle costs its rounds, no more"
    assert scores["random"].gap == 0.0 and 0 < scores["random"].final <= 1


def test_noop_control_scores_zero(table: Table) -> None:
    for score in compare(table, ["tpe", "hybrid:1"], seeds=2, settings=SimulationSettings(rounds=6), control="noop"):
        assert score.final == 0.0 and score.verified == 0.0


def test_shuffled_control_reports_other_figures_and_scores_true_ones(table: Table) -> None:
    reported = bench_table.shuffled_indices(table, 0)
    assert sorted(reported) == list(range(len(table.entries))) and reported != sorted(reported)
    dud = TableEntry(table.entries[0].config, table.entries[0].params, "ok", None, 10, 10, 1.0, np.zeros(0, np.int64))
    good = table.entries[max(simulation.verifiable_entries(table), key=lambda one: one[1][0])[0]]
    two, seen = Table([dud, good], table.baseline), list[dict[str, Any]]()

    def watched(view: IdeatorView) -> Any:
        seen[:] = view.history
        return strategy("random", two, SETTINGS)(view)

    run = simulate(watched, two, seed=0, settings=SimulationSettings(rounds=2, reported=[1, 0]))
    assert seen[0]["verify_verdict"] == "VERIFIED" and seen[0]["n_params"] == good.n_params, "the dud looks good"
    assert run.verified == 0 and run.hypervolume == [0.0, 0.0], (
        "and the good one, reported as the bad one, is not verified"
    )


def test_mirrored_params_are_their_own_inverse() -> None:
    rng = random.Random(0)
    for config in rng.sample(sample_configs(60, "a fixture"), 20):
        params = space.params_of(config)
        assert params is not None
        mirrored = mirror_params(params)
        assert space.params_of(space.build(mirrored)) is not None
        assert bench_table.distance(mirror_params(mirrored), params) < 0.05
        assert bench_table.distance(mirrored, params) > 0.3


def test_oracle_proposes_transformed_params(table: Table) -> None:
    settings = SimulationSettings(rounds=3, params_transform=mirror_params)
    run = simulate(Oracle(table, 1.0, settings), table, seed=0, settings=settings)
    assert run.hypervolume[-1] > 0.5 * simulation.max_hypervolume(table)


def test_unknown_strategy_and_missing_table_are_refused(table: Table, tmp_path: Path) -> None:
    for name in ("oracle", "hybrid:2", "hybrid:x"):
        with pytest.raises(UsageError, match="unknown strategy"):
            compare(table, [name], seeds=2, settings=SETTINGS)
    with pytest.raises(UsageError, match="does not exist"):
        Table.read(tmp_path / "none.jsonl")


def test_planned_jobs_have_the_documented_size() -> None:
    todo = qecbench_tab.jobs()
    small = [job for job in todo if job.env == qecbench_tab.SMALL_ENV]
    assert len({space.digest(job.config) for job in small}) >= 500
    deep = {space.digest(job.config) for job in small if job.fidelity != "full"}
    assert len(deep) == 50 and len(todo) == 520 + 50 * 8 + 24 and len({job.key for job in todo}) == len(todo)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_unique_syndromes_equals_decoding_every_shot(family: str) -> None:
    """A network with random weights, decoded as in a run and as for the table."""
    desk = qecbench_tab.EnvBenchmark(qecbench_tab.SMALL_ENV, 3000)
    config = next(config for config in sample_configs(60, "a fixture") if config["type"] == family)
    torch.manual_seed(0)
    model = compile_predecoder(parse_dsl(config), desk.problem, seed=0)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 3 * torch.randn_like(weights)
    agent = PredecoderAgent(model, flops.count(model, desk.problem.n_detectors).flops_per_syndrome)
    plain, candidate = decode_both(desk.problem, agent, desk.shots)
    assert (desk.plain == plain).all() and (desk.failures(agent) == candidate).all() and (candidate != plain).any()


def test_table_is_built_interrupted_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small trainings; the second start measures what is missing, and the command scores the table."""
    tiny = qecbench_tab.FULL.model_copy(update={"train_shots": 2048, "finetune_shots": 64})
    monkeypatch.setattr(qecbench_tab, "FULL", tiny)
    out = tmp_path / "table.jsonl"
    wide = {"type": "mlp", "mlp": {"hidden": 768, "depth": 4}}
    configs = [*sample_configs(4), space.normalise(wide)]
    todo = [qecbench_tab.Job("smoke", config, "full", 0) for config in configs]
    assert qecbench_tab.build(out, todo[:2], shots=2000) == 2
    before = out.read_bytes()
    assert qecbench_tab.build(out, todo, shots=2000) == 3 and out.read_bytes().startswith(before)
    assert qecbench_tab.build(out, todo, shots=2000) == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    references = [line for line in lines if line["kind"] == "reference"]
    assert {line["name"] for line in references} == {"mwpm", "mwpm_correlated"}
    entries = {line["key"]: line for line in lines if line["kind"] == "cell"}
    refused = entries[todo[-1].key]
    assert refused["status"] == "compile_error" and refused["differs"] is None and "limits" in refused["reason"]
    measured = entries[todo[0].key]
    plain = next(line for line in references if line["name"] == line["plain"])
    failures = unpack(measured["differs"], 2000) ^ unpack(plain["failures"], 2000)
    assert failures.sum() == measured["errors"] > 0
    argv = ["--table", str(out), "--rounds", "4", "--seeds", "2", "--val-shots", "500"]
    argv += ["--strategies", "tpe", "--reference", "random,evolve", "--write", str(tmp_path / "scores.md"), "--json"]
    assert main(argv) == 0
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [score["strategy"] for score in scores[::2]] == ["random", "evolve", "tpe"]
    written = (tmp_path / "scores.md").read_text(encoding="utf-8")
    assert written.count("| tpe | none |") == 1 and "| minus random [95%] | regret against random at" in written
    assert "| minus evolve [95%] |" in written


def test_committed_table_is_complete_and_consistent() -> None:
    """All jobs are present, bitmaps match counts, and some entries reach the protocol's gain."""
    lines = [json.loads(line) for line in qecbench_tab.OUT.read_text(encoding="utf-8").splitlines()]
    entries = [line for line in lines if line["kind"] == "cell"]
    assert len({line["key"] for line in entries}) == len(entries) == len(qecbench_tab.jobs())
    table = Table.read(qecbench_tab.OUT)
    assert len({space.digest(entry.config) for entry in table.entries}) >= 500 and table.baseline.size == 1_000_000
    assert {entry.status for entry in table.entries} == {"ok", "compile_error"} and max(
        c.seconds for c in table.entries
    ) < 10
    errors = {space.digest(line["config"]): line["errors"] for line in entries
              if (line["env"], line["fidelity"], line["seed"]) == (table.env, "full", 0)}  # fmt: skip
    for index, entry in enumerate(table.entries):
        counts = table.counts(index, slice(None))
        assert (None if counts is None else counts.errors_candidate) == errors[space.digest(entry.config)]
    for fidelity in qecbench_tab.FIDELITIES:
        for seed in qecbench_tab.SEEDS:
            assert len(Table.read(qecbench_tab.OUT, fidelity=fidelity, seed=seed).entries) >= 50
    assert len(Table.read(qecbench_tab.OUT, env=qecbench_tab.LARGE_ENV).entries) == 24
    assert 20 < len(simulation.verifiable_entries(table)) < 100


def test_min_gain_limits_what_is_verified(table: Table) -> None:
    counts = [len(simulation.verifiable_entries(table, bar)) for bar in (0.0, 0.02, 0.2, 1.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[2] > counts[3] == 0
    strict = simulate(strategy("tpe", table, SETTINGS), table, seed=3, settings=SimulationSettings(min_gain=1.0))
    assert strict.verified == 0 and strict.hypervolume[-1] == 0.0
