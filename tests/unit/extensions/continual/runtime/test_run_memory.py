"""CrossRunMemory: each round is learned once, notes prefer similar envs, damaged files are rejected."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.history import HistoryRow
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.memory.base import CheatsheetEntry, ReflectionEntry
from autoqec.extensions.continual.memory.modules import build_memory, load_memory
from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory, experiences
from autoqec.extensions.language_models.contracts import Citation, Lesson
from autoqec.store.files import load_env
from tests.support import rounds
from tests.support.envs import surface
from tests.support.recorded import recorded_env

SMALL, LARGE = surface(3, 0.01), surface(5, 0.005)


def config(hidden: int) -> dict:
    return PredecoderDSL.model_validate({"type": "mlp", "mlp": {"hidden": hidden}}).config()


def verified(number: int, gain: float, hidden: int) -> HistoryRow:
    fields = {"verify_verdict": "VERIFIED", "verdict": "candidate", "relative_holdout": gain}
    return rounds.row(number, dsl_config=config(hidden), **fields, next_hypothesis_seed="a deeper net")


def broken(number: int, hidden: int) -> HistoryRow:
    return rounds.row(number, status="train_error", status_reason="the loss is not finite", dsl_config=config(hidden))


def test_each_round_is_learned_once_and_survives_reloading(tmp_path: Path) -> None:
    learned = CrossRunMemory(tmp_path / "memory.jsonl")
    rows = [verified(1, 0.12, 96), broken(2, 700)]
    assert learned.learn("run-a", SMALL, rows) == 2 and learned.learn("run-a", SMALL, rows) == 0
    again = CrossRunMemory(tmp_path / "memory.jsonl")
    assert len(again) == 2 and again.learn("run-a", SMALL, [*rows, verified(3, 0.2, 128)]) == 1
    first = load_memory(tmp_path / "memory.jsonl").entries()[0]
    assert (
        first.feedback["correct"] and "+12.0%" in first.feedback["message"] and json.loads(first.action) == config(96)
    )
    assert "a deeper net" in first.feedback["message"]


def test_experiences_name_the_shots_of_the_verifier(tmp_path: Path) -> None:
    sealed, _ = load_env(recorded_env(tmp_path))
    for env, shots in ((SMALL, "fresh shots"), (sealed, "sealed shots")):
        (entry,) = experiences("run-a", env, [verified(1, 0.12, 96)])
        assert f"+12.0% of the errors avoided on {shots}" in entry.feedback["message"]


def test_notes_list_gains_and_failures_of_other_runs(tmp_path: Path) -> None:
    learned = CrossRunMemory(tmp_path / "memory.jsonl")
    learned.add("run-a", SMALL, [verified(1, 0.12, 96), verified(2, 0.3, 128), broken(3, 700)])
    best, worst, second = learned.notes(LARGE)
    assert "hidden=128" in best and SMALL.name in best and "+30.0%" in best
    assert "train_error" in worst and "hidden=700" in worst and "hidden=96" in second
    assert learned.notes(LARGE, exclude_run="run-a") == []


@pytest.mark.parametrize("kind", ["hybrid", "experience_db", "history_list"])
def test_lessons_come_first_however_many_rounds_there_are(tmp_path: Path, kind: str) -> None:
    build_memory({"_type": kind}).save(tmp_path / "memory.jsonl")
    learned = CrossRunMemory(tmp_path / "memory.jsonl")
    cite = Citation(round=1, figure="n_params", value=4000)
    lessons = [Lesson(id=number, text=f"lesson number {number}", cites=(cite,)) for number in (1, 2)]
    assert learned.learn("run-a", SMALL, [], lessons) == 0
    assert learned.learn("run-a", SMALL, [verified(number, 0.1, 64 + number) for number in range(1, 40)], lessons) == 39
    again = CrossRunMemory(tmp_path / "memory.jsonl")
    assert len(again) == 41, "each lesson once"
    assert again.notes(LARGE)[:2] == [
        f"lesson, {SMALL.name}: lesson number {number} [r1 n_params 4000]" for number in (2, 1)
    ]
    assert again.notes(LARGE, exclude_run="run-a") == []


def test_notes_prefer_the_most_similar_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoqec.extensions.continual.runtime.run_memory.MAX_NEIGHBOURS", 1)
    learned = CrossRunMemory(tmp_path / "memory.jsonl")
    learned.add("run-a", SMALL, [verified(1, 0.3, 96)])
    learned.add("run-b", LARGE, [verified(2, 0.1, 128).model_copy(update={"round_attempt_id": "other"})])
    assert "hidden=128" in learned.notes(LARGE)[0] and "hidden=96" in learned.notes(SMALL)[0]


def test_two_runs_sharing_a_file_keep_each_others_rounds(tmp_path: Path) -> None:
    first_memory, second_memory = CrossRunMemory(tmp_path / "memory.jsonl"), CrossRunMemory(tmp_path / "memory.jsonl")
    first_memory.learn("run-a", SMALL, [verified(1, 0.12, 96)])
    second_memory.learn("run-b", SMALL, [broken(2, 700)])
    assert len(CrossRunMemory(tmp_path / "memory.jsonl")) == 2


def test_notes_start_with_the_agents_own_entries(tmp_path: Path) -> None:
    memory = build_memory({"_type": "hybrid"})
    memory.update(CheatsheetEntry(content="wide nets overfit\nsmall rates"))
    memory.update(ReflectionEntry(content="try gnn next"))
    memory.save(tmp_path / "memory.jsonl")
    learned = CrossRunMemory(tmp_path / "memory.jsonl")
    learned.add("run-a", SMALL, [verified(1, 0.12, 96)])
    assert learned.notes(SMALL)[:3] == ["wide nets overfit", "small rates", "try gnn next"]


def test_unusable_memory_file_is_rejected_unchanged(tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl"
    CrossRunMemory(torn).learn("run-a", SMALL, [verified(1, 0.12, 96)])
    torn.write_bytes(torn.read_bytes()[:-20])
    before = torn.read_bytes()
    with pytest.raises(ContractError, match="damaged"):
        CrossRunMemory(torn)
    build_memory({"_type": "cheatsheet"}).save(tmp_path / "sheet.jsonl")
    with pytest.raises(UsageError, match="cannot store experiences"):
        CrossRunMemory(tmp_path / "sheet.jsonl")
    for path in (tmp_path, tmp_path / "nowhere/memory.jsonl"):
        with pytest.raises(UsageError, match="a memory cannot be stored"):
            CrossRunMemory(path)
    assert torn.read_bytes() == before


def test_fifo_is_refused_with_a_hint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ContractError, match="is not a regular file") as refused:
        CrossRunMemory(tmp_path / "pipe")
    assert refused.value.hint == "name another file; one that does not exist starts empty"
