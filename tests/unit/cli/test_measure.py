"""`autoqec measure`: one checkpoint on several circuits, with intervals that hold together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.cli.autoqec import group
from autoqec.cli.commands.measure import parse_member
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.round import PairedCounts
from autoqec.decoders import checkpoint, family
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.family import Member
from autoqec.errors import UsageError
from autoqec.qec.backends import make_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from autoqec.qec.stats import paired_effect
from autoqec.store.files import dump_config
from autoqec.system import memory
from tests.support.envs import repetition, surface
from tests.support.shown import check_error

LOCAL: dict[str, Any] = {"type": "local", "local": {"hidden": 4, "space": 1, "time": 1}}


def save(place: Path, env: EnvSpec, config: dict[str, Any] | None = None, noise: float = 0.3) -> Path:
    """Save a checkpoint whose weights are changed, so that it fails on other shots than the inner decoder."""
    dsl = parse_dsl(config or LOCAL)
    model = compile_predecoder(dsl, Problem.from_env(env), seed=1)
    for parameter in model.parameters():
        parameter.data += noise * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    checkpoint.save(place / "checkpoint.pt", model, dsl)
    (place / "env.yaml").write_text(dump_config(env.dump()), encoding="utf-8")
    return place / "checkpoint.pt"


def measure(place: Path, *more: str) -> int:
    return run_cli(group, ["measure", str(place / "checkpoint.pt"), "--env", str(place / "env.yaml"), *more])


def test_circuit_larger_than_memory_is_rejected_before_any_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, surface(3, 0.01))
    monkeypatch.setattr(memory, "available_bytes", lambda: int(2e9))
    assert measure(tmp_path, "--at", "p=0.01", "--at", "d=11,r=9000", "--shots", "700") == 2
    error, hint = check_error(capsys.readouterr().err, "more than the 2 GB available", hint=True)
    assert "detectors" in error and "--window" in str(hint)


def test_every_circuit_is_compared_with_both_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, surface(3, 0.01))
    circuits = ("--at", "p=0.01", "--at", "d=5,r=2", "--at", "r=9,p=0.02")
    assert measure(tmp_path, *circuits, "--shots", "700", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["confidence"] == pytest.approx(1 - 0.05 / 6) and answer["shots"] == 700 and not answer["verified"]
    found = [(each["distance"], each["rounds"], each["p"], each["trained"]) for each in answer["members"]]
    assert found == [(3, 3, 0.01, True), (5, 2, 0.01, False), (3, 9, 0.02, False)]
    for each in answer["members"]:
        assert [effect["reference"] for effect in each["effects"]] == ["mwpm", "mwpm_correlated"]
        failures = {effect["counts"]["errors_candidate"] for effect in each["effects"]}
        assert len(failures) == 1 and failures.pop() > 0
        for effect in each["effects"]:
            counts = PairedCounts(**effect["counts"])
            expected = paired_effect(counts, confidence=answer["confidence"])
            assert (effect["delta_low"], effect["delta_high"]) == (expected.delta_low, expected.delta_high)
            assert expected.delta_high - expected.delta_low > (
                paired_effect(counts).delta_high - paired_effect(counts).delta_low
            )


def test_counts_are_those_of_the_decoders_on_the_same_shots(tmp_path: Path) -> None:
    path, env, member = save(tmp_path, surface(3, 0.01)), surface(3, 0.01), Member(5, 3, 0.01)
    [result] = family.evaluate_members(env, path, [member], shots=300, seed=7)
    problem = Problem.from_env(surface(5, 0.01, rounds=3))
    shots = sample(problem, 300, family.band_seed(family.SEEDS, "family", 7, str(member), 0))
    for effect in result.effects:
        reference = make_backend(effect.reference, problem).decode(shots.detection_events)
        assert effect.counts.errors_reference == int((reference != shots.observables).sum()) > 0
    [other] = family.evaluate_members(env, path, [member], shots=300, seed=8)
    assert other.effects != result.effects


def test_table_states_where_a_difference_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, surface(3, 0.02), noise=3.0)  # nearly random log-odds: worse than matching where shots suffice
    assert measure(tmp_path, "--at", "d=3", "--at", "p=0.001", "--shots", "2000") == 0
    text = capsys.readouterr().out
    assert "| d=3 r=3 p=0.02 | yes | 2000 |" in text and "| d=3 r=3 p=0.001 | no | 2000 |" in text
    assert "All 4 intervals hold together with probability 0.95 (Bonferroni)." in text
    assert "more failures than mwpm: d=3 r=3 p=0.02" in text


@pytest.mark.parametrize(
    ("fixed", "broken", "expected"), [(40, 5, "fewer"), (5, 40, "more"), (6, 5, "not shown"), (0, 0, "not shown")]
)
def test_outcome_follows_the_interval(fixed: int, broken: int, expected: str) -> None:
    counts = PairedCounts(
        shots=1000, errors_reference=fixed + 3, errors_candidate=broken + 3, fixed=fixed, broken=broken
    )
    assert family.outcome(paired_effect(counts)) == expected


def test_more_circuits_need_more_evidence(tmp_path: Path) -> None:
    counts = PairedCounts(shots=1000, errors_reference=23, errors_candidate=10, fixed=20, broken=7)
    states = [family.outcome(paired_effect(counts, confidence=family.simultaneous_confidence(0.05, n))) for n in (1, 8)]
    assert states == ["fewer", "not shown"]


def test_weights_of_one_circuit_are_refused_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, surface(3), {"type": "mlp", "mlp": {"hidden": 8}})
    assert measure(tmp_path, "--at", "d=5,r=5") == 2
    text = capsys.readouterr().err
    assert "d=5 r=5 p=0.01: weights of type `mlp` belong to the circuit d=3 r=3" in text and "hint: " in text
    assert measure(tmp_path, "--at", "p=0.02", "--shots", "100") == 0


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("d=5,d=7", "each once"),
        ("seven", "'seven'"),
        ("d=5.5", "'5.5' is not a number for d"),
        ("p=1e", "'1e' is not a number for p"),
        ("p=0.7", "outside (0, 1/2)"),
        ("d=1", "distance"),
        ("r=0", "rounds"),
    ],
)
def test_invalid_circuits_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, part: str) -> None:
    save(tmp_path, surface(3))
    assert measure(tmp_path, "--at", text) == 2
    error = capsys.readouterr().err
    assert part in error and "hint: " in error


def test_repeated_circuit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, surface(3))
    assert measure(tmp_path, "--at", "d=5", "--at", "d=5,r=3") == 2
    assert "is given twice" in capsys.readouterr().err


def test_values_left_out_are_those_of_the_env() -> None:
    target = Member(5, 4, 0.003)
    assert parse_member("r=9", target) == Member(5, 9, 0.003)
    assert parse_member(" d=7 , p=1e-3 ", target) == Member(7, 4, 0.001)


def test_code_without_distance_has_no_family() -> None:
    env = EnvSpec.read({**repetition().dump(), "code": {"kind": "bivariate_bicycle"}, "backend": "bposd",
                        "baselines": ["bposd0"]})  # fmt: skip
    with pytest.raises(UsageError, match="`bivariate_bicycle` has no distance"):
        family.target_member(env)


def test_another_circuit_with_as_many_detectors_is_not_the_same(tmp_path: Path) -> None:
    path = save(tmp_path, surface(5))  # 120 detectors
    other = Problem.from_env(surface(3, rounds=15))
    assert other.n_detectors == Problem.from_env(surface(5)).n_detectors
    decoder = CheckpointDecoder.of(surface(5), path, other.dem)
    assert decoder.other_circuit and decoder.n_unknown_edges == 0
    shots = sample(other, 200, 1)
    wrong = (decoder.decode(shots.detection_events) != shots.observables).any(axis=1)
    assert 0 < np.count_nonzero(wrong) < 100
