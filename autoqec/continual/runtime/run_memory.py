"""What rounds taught, carried from run to run: rows of history as experiences of a memory, and as notes for a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoqec.continual.environments.design import EnvFeatures
from autoqec.continual.environments.design_text import task
from autoqec.continual.memory.entries import CheatsheetEntry, Entry, ExperienceEntry, ReflectionEntry
from autoqec.continual.memory.factory import Memory, build_memory, load_memory
from autoqec.continual.memory.retrieval import RetrievalService
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import HistoryRow
from autoqec.errors import UsageError
from autoqec.ideators import prompts
from autoqec.store.run_state import fold

EXPERIENCE_MEMORY_TYPES = ("hybrid", "experience_db", "history_list")  # memories that take experiences
MAX_NEIGHBOURS = 200  # experiences that notes are chosen from, the likest envs first
MAX_SHOWN = 6  # of the best, and as many of what failed


class CrossRunMemory:
    """A memory that runs share, in one file: the snapshot of a memory, as RunTime's checkpoints hold one.

    A file that is not there yet is an empty hybrid memory. Raises ContractError for a damaged one, UsageError for a
    memory that takes no experiences, or a place where no file can be.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            hint = f"mkdir -p {self.path.parent}, and name a file in it"
            raise UsageError("no memory can be kept there", location=str(path), hint=hint)
        self.memory = self._read()

    def add(self, run_id: str, env: EnvSpec, rows: Iterable[HistoryRow]) -> int:
        """Learn the finished rounds of a run, each once however often it is told; how many were new."""
        known = {entry.metadata.get("attempt") for entry in self._experiences()}
        fresh = [entry for entry in experiences(run_id, env, rows) if entry.metadata["attempt"] not in known]
        for entry in fresh:
            self.memory.update(entry)
        return len(fresh)

    def learn(self, run_id: str, env: EnvSpec, rows: Iterable[HistoryRow]) -> int:
        """`add`, on top of what another run may have put into the file meanwhile; durable on return."""
        self.memory = self._read()
        added = self.add(run_id, env, rows)
        if added:
            self.memory.save(self.path)
        return added

    def notes(self, env: EnvSpec, *, exclude_run: str = "") -> list[str]:
        """Lines for a model's prompt, most telling first: sheet and reflections, then what gained and what failed on
        the envs that are likest. but: the run whose own rounds are left out, for its history tells them."""
        entries = self.memory.recall()
        lines = [line for entry in entries if isinstance(entry, CheatsheetEntry) for line in entry.content.splitlines()]
        lines += [entry.content for entry in entries if isinstance(entry, ReflectionEntry)][-MAX_SHOWN:]
        pool = [entry for entry in self._experiences() if entry.metadata.get("run") != exclude_run]
        index = RetrievalService()
        index.build_index(entry.obs for entry in pool)
        neighbours = [pool[place] for place in index.query_top_k(task(EnvFeatures.of(env)), MAX_NEIGHBOURS)]
        good = sorted((entry for entry in neighbours if _gain(entry) > 0), key=_gain, reverse=True)[:MAX_SHOWN]
        bad = [entry for entry in neighbours if _gain(entry) <= 0][:MAX_SHOWN]
        # By turns, so that a short prompt holds some of either.
        interleaved = [pair[place] for place in range(MAX_SHOWN) for pair in (good, bad) if place < len(pair)]
        return [*lines, *map(_format_note, interleaved)]

    def __len__(self) -> int:
        return len(self.memory.entries())

    def _read(self) -> Memory:
        memory = load_memory(self.path) if self.path.exists() else build_memory({"_type": "hybrid"})
        if memory.config.type not in EXPERIENCE_MEMORY_TYPES:
            what = f"a memory of type {memory.config.type!r} takes no experiences"
            raise UsageError(
                what, location=str(self.path), hint=f"name a file of another type: {', '.join(EXPERIENCE_MEMORY_TYPES)}"
            )
        return memory

    def _experiences(self) -> list[ExperienceEntry]:
        return [entry for entry in self.memory.entries() if isinstance(entry, ExperienceEntry)]


def experiences(run_id: str, env: EnvSpec, rows: Iterable[HistoryRow]) -> list[ExperienceEntry]:
    """One a round that came to its end: the env's task, the config, what judge and val shots said, the advice."""
    obs, found = task(EnvFeatures.of(env)), []
    for row in (found.row for found in fold(rows).rounds.values() if not found.lost):
        if row.dsl_config:
            attempt = row.refers_to_attempt or row.round_attempt_id
            metadata = {"run": run_id, "round": row.round, "attempt": attempt, "env": env.name}
            config = json.dumps(row.dsl_config, sort_keys=True)
            found.append(ExperienceEntry(obs=obs, action=config, feedback=_feedback(row), metadata=metadata))
    return found


def _feedback(row: HistoryRow) -> dict[str, Any]:
    """In the words that every environment has for it."""
    if row.status != "ok":
        outcome, gain = f"{row.status}: {row.status_reason}", None
    elif row.verify_verdict is not None:
        gain = row.relative_holdout
        figure = "no effect published" if gain is None else f"{100 * gain:+.1f}% of the errors avoided on fresh shots"
        outcome = f"judge {row.verify_verdict}, {figure}"
    else:
        plain = row.ler_plain_classical
        gain = row.delta_ler / plain if plain and row.delta_ler is not None else None
        outcome = "not nominated" + ("" if gain is None else f", {100 * gain:+.1f}% on val shots")
    if row.next_hypothesis_seed:
        outcome += f"; advice: {prompts.sanitize(row.next_hypothesis_seed, 120)}"
    feedback = {"correct": row.verify_verdict == "VERIFIED", "target": "", "message": prompts.sanitize(outcome, 300)}
    return feedback if gain is None else feedback | {"extra": {"relative": gain}}


def _gain(entry: ExperienceEntry) -> float:
    """What was verified counts as it was measured; what was not, as nothing gained."""
    return float((entry.feedback.get("extra") or {}).get("relative") or 0.0) if entry.feedback.get("correct") else 0.0


def _format_note(entry: Entry) -> str:
    if not isinstance(entry, ExperienceEntry):
        return entry.line()
    try:
        words = prompts.describe_config(json.loads(entry.action))
    except ValueError:
        words = prompts.sanitize(entry.action, 120)
    place = entry.metadata.get("env") or prompts.sanitize(entry.obs, 80)
    return f"{place}: {words}: {entry.feedback.get('message', '')}"
