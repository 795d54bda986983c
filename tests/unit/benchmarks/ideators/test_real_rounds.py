"""Real runs, with a Runner and a verifier that answer at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.round import PairedCounts, RoundMetrics, RunnerConfig
from autoqec.decoders import family
from autoqec.qec.stats import paired_effect
from autoqec.runner import runner
from benchmarks.ideators import real_rounds
from benchmarks.ideators.__main__ import main
from tests.crash import canned

DELTAS = (-0.001, 0.004, 0.002, 0.005)  # on validation shots, of the measured rounds of a run
FIXED = (0, 100, 900, 200)  # of 1,000 failures on the fresh shots


class FakeRunner:
    """Measures rounds at once; keeps the round directories of every run, and the positions of the scored rounds.

    In the round `interrupt_at` of all, the process is interrupted.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained, self.measured, self.interrupt_at = dict[str, list[Path]](), list[int](), 0
        canned.install(monkeypatch.setattr)
        monkeypatch.setattr(runner, "run_round", self.run_round)
        monkeypatch.setattr(family, "evaluate_members", self.evaluate)
        self._cpu_s = 0.0
        monkeypatch.setattr(real_rounds, "cpu_seconds", lambda: self._cpu_s)

    @property
    def n_trained(self) -> int:
        return sum(map(len, self.trained.values()))

    def run_round(self, config: RunnerConfig, *, on_event: Any = None) -> RoundMetrics:
        if self.n_trained + 1 == self.interrupt_at:
            self.interrupt_at = 0
            raise KeyboardInterrupt
        round_dir = Path(config.round_dir)
        of_run = self.trained.setdefault(str(round_dir.parent), [])
        delta = DELTAS[len(of_run)]
        of_run.append(round_dir)
        self._cpu_s += 10.0
        result = canned.run_round(config, on_event=on_event)
        return result.model_copy(update={"delta_ler": delta, "ler_predecoder": 0.03 - delta})

    def evaluate(self, env: Any, path: Path, members: Sequence[Any], *, shots: int, seed: int) -> Iterator[Any]:
        position = self.trained[str(path.parents[1])].index(path.parent)
        self.measured.append(position + 1)
        fixed = FIXED[position]
        counts = PairedCounts(shots=shots, errors_reference=1000, errors_candidate=1000 - fixed, fixed=fixed, broken=0)
        yield family.MemberEffect(members[0], True, (paired_effect(counts, reference="mwpm", p=0.01),))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    return FakeRunner(monkeypatch)


def argv(directory: Path, *more: str, n_rounds: int = 3) -> list[str]:
    base = ["--train", str(directory), "--env", "smoke", "--profile", "smoke", "--test-shots", "5000"]
    return [*base, "--seeds", "2", "--rounds", str(n_rounds), "-q", "--json", *more]


def scores(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {line["strategy"]: line for line in lines}


def test_runs_are_scored_by_the_best_round_on_validation_shots(
    fake: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    more = ("--strategies", "evolve,tpe", "--reference", "tpe", "--write", str(page))
    assert main(argv(tmp_path / "runs", *more)) == 0
    found = scores(capsys)
    assert set(found) == {"evolve", "tpe"} and fake.n_trained == 2 * 2 * 3
    assert fake.measured == [2] * 4, "round 3 gains less on validation shots, whatever fresh shots say"
    tpe = found["tpe"]
    assert tpe["final"] == pytest.approx(0.1) and tpe["mean"] == pytest.approx(0.2 / 3)
    assert tpe["at_equal_seconds"] == 0.0 and tpe["regret"] == 0.0, "after 15 of 30 seconds only round 1 is done"
    assert tpe["seconds"] == 30.0 and tpe["built"] == 1.0 and tpe["dollars"] == 0.0
    assert found["evolve"]["gap"] == 0.0 and "5,000 fresh shots" in page.read_text(encoding="utf-8")


def test_interrupted_comparison_continues_with_what_is_missing(
    fake: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = argv(tmp_path / "runs", "--strategies", "tpe", "--reference", "tpe")
    fake.interrupt_at = 5  # in round 2 of seed 2
    assert main(command) == 130
    capsys.readouterr()
    assert main(command) == 0
    found = scores(capsys)
    assert fake.n_trained == 6 and found["tpe"]["seconds"] == 30.0
    assert fake.measured == [2, 2]
    assert main(command) == 0 and fake.n_trained == 6 and fake.measured == [2, 2], "nothing is repeated"
    assert scores(capsys) == found
    more = argv(tmp_path / "runs", "--strategies", "tpe", "--reference", "tpe", n_rounds=4)
    assert main(more) == 0 and fake.n_trained == 8 and fake.measured == [2, 2, 4, 4], "more rounds"
    assert scores(capsys)["tpe"]["final"] == pytest.approx(0.2)


def test_model_runs_with_its_share_of_the_budget(
    fake: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--model", "scripted:novice", "--strategies", "llm,tpe", "--reference", "tpe", "--budget", "tokens=9000000")
    assert main(argv(tmp_path / "runs", *more)) == 0
    found = scores(capsys)
    assert found["llm"]["built"] < 0.7 < found["tpe"]["built"], "rounds that the search took over are not its own"
    (info, *_) = (tmp_path / "runs").glob("llm-*/runs/*/run.json")
    assert json.loads(info.read_text(encoding="utf-8"))["budget"] == {"tokens": 4_500_000}
