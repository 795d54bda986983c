"""Carries what rounds taught from run to run: history rows as experiences of a memory and as notes for a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.verdict import comparison_terms
from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.design import EnvFeatures
from autoqec.extensions.continual.environments.design_text import task
from autoqec.extensions.continual.memory.base import CheatsheetEntry, Entry, ExperienceEntry, ReflectionEntry
from autoqec.extensions.continual.memory.modules import Memory, RetrievalService, build_memory, load_memory
from autoqec.extensions.language_models.contracts import Lesson
from autoqec.extensions.language_models.roles.data_blocks import sanitize
from autoqec.extensions.language_models.roles.notebook import format_lesson
from autoqec.extensions.language_models.roles.view_text import describe_config
from autoqec.store.run_state import fold

EXPERIENCE_MEMORY_TYPES = ("hybrid", "experience_db", "history_list")  # memories that store experiences
MAX_NEIGHBOURS = 200  # experiences considered for notes, those of the most similar envs first
MAX_SHOWN_LESSONS = 12
LESSON = "lesson"  # key of the metadata of an entry that is a lesson and no round
MAX_SHOWN = 6  # best rounds, and as many failed ones


class CrossRunMemory:
    """Memory shared by several runs, in one file with the format of a memory snapshot.

    A missing file is an empty hybrid memory.

    Raises:
        ContractError: If the file is damaged.
        UsageError: If the memory cannot store experiences, or the path cannot hold a file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            hint = f"mkdir -p {self.path.parent}, and name a file in it"
            raise UsageError("a memory cannot be stored here", location=str(path), hint=hint)
        self.memory = self._read()

    def add(self, run_id: str, env: EnvSpec, rows: Iterable[HistoryRow], lessons: Iterable[Lesson] = ()) -> int:
        """Add the finished rounds and the lessons of a run, each once; return how many rounds were new."""
        known = {entry.metadata.get("attempt") for entry in self._entries()}
        rounds = [entry for entry in experiences(run_id, env, rows) if entry.metadata["attempt"] not in known]
        texts = {entry.action for entry in self._entries() if LESSON in entry.metadata}
        fresh = [entry for entry in map(partial(_lesson, run_id, env), lessons) if entry.action not in texts]
        for entry in (*rounds, *fresh):
            self.memory.update(entry)
        return len(rounds)

    def learn(self, run_id: str, env: EnvSpec, rows: Iterable[HistoryRow], lessons: Iterable[Lesson] = ()) -> int:
        """Reread the file, `add` to it and save it, so that rounds added by other runs are kept."""
        self.memory = self._read()
        before = len(self)
        added = self.add(run_id, env, rows, lessons)
        if len(self) > before:
            self.memory.save(self.path)
        return added

    def notes(self, env: EnvSpec, *, exclude_run: str = "") -> list[str]:
        """Return lines for a model's prompt, most informative first.

        The newest lessons come first, then cheatsheet and reflections, then gains and failures of the most similar envs
        in turn.

        Args:
            env: The env of the current run.
            exclude_run: Run whose rounds are left out, because its own history shows them.
        """
        entries = self.memory.recall()
        lessons = [one for one in self._entries() if LESSON in one.metadata and one.metadata.get("run") != exclude_run]
        lines = [f"lesson, {one.metadata.get('env')}: {one.action}" for one in lessons[: -MAX_SHOWN_LESSONS - 1 : -1]]
        sheets = [entry for entry in entries if isinstance(entry, CheatsheetEntry)]
        lines += [line for entry in sheets for line in entry.content.splitlines()]
        lines += [entry.content for entry in entries if isinstance(entry, ReflectionEntry)][-MAX_SHOWN:]
        pool = [entry for entry in self._experiences() if entry.metadata.get("run") != exclude_run]
        index = RetrievalService()
        index.build_index(entry.obs for entry in pool)
        neighbours = [pool[position] for position in index.query_top_k(task(EnvFeatures.of(env)), MAX_NEIGHBOURS)]
        good = sorted((entry for entry in neighbours if _gain(entry) > 0), key=_gain, reverse=True)[:MAX_SHOWN]
        bad = [entry for entry in neighbours if _gain(entry) <= 0][:MAX_SHOWN]
        # Alternating, so that a short prompt contains some of each.
        interleaved = [pair[place] for place in range(MAX_SHOWN) for pair in (good, bad) if place < len(pair)]
        return [*lines, *map(_format_note, interleaved)]

    def __len__(self) -> int:
        return len(self.memory.entries())

    def _read(self) -> Memory:
        memory = load_memory(self.path) if self.path.exists() else build_memory({"_type": "hybrid"})
        if memory.config.type not in EXPERIENCE_MEMORY_TYPES:
            message = f"a memory of type {memory.config.type!r} cannot store experiences"
            raise UsageError(
                message,
                location=str(self.path),
                hint=f"name a file of another type: {', '.join(EXPERIENCE_MEMORY_TYPES)}",
            )
        return memory

    def _entries(self) -> list[ExperienceEntry]:
        return [entry for entry in self.memory.entries() if isinstance(entry, ExperienceEntry)]

    def _experiences(self) -> list[ExperienceEntry]:
        return [entry for entry in self._entries() if LESSON not in entry.metadata]


def experiences(run_id: str, env: EnvSpec, rows: Iterable[HistoryRow]) -> list[ExperienceEntry]:
    """Return one experience per finished round: task of the env, config, verdict and validation figures, advice."""
    obs, entries = task(EnvFeatures.of(env)), list[ExperienceEntry]()
    shots = comparison_terms(sealed=env.code.own_shots).shots
    for row in (state.row for state in fold(rows).rounds.values() if not state.lost):
        if row.dsl_config:
            attempt = row.refers_to_attempt or row.round_attempt_id
            metadata = {"run": run_id, "round": row.round, "attempt": attempt, "env": env.name}
            config = json.dumps(row.dsl_config, sort_keys=True)
            entries.append(ExperienceEntry(obs=obs, action=config, feedback=_feedback(row, shots), metadata=metadata))
    return entries


def _lesson(run_id: str, env: EnvSpec, lesson: Lesson) -> ExperienceEntry:
    """Return a lesson as an entry that every type of memory stores."""
    metadata = {"run": run_id, LESSON: lesson.id, "attempt": f"{run_id}/lesson/{lesson.id}", "env": env.name}
    text = format_lesson(lesson).partition(". ")[2]
    return ExperienceEntry(obs=task(EnvFeatures.of(env)), action=text, feedback={}, metadata=metadata)


def _feedback(row: HistoryRow, shots: str) -> dict[str, Any]:
    """Return the outcome of a round in the feedback format of all environments."""
    if row.status != "ok":
        outcome, gain = f"{row.status}: {row.status_reason}", None
    elif row.verify_verdict is not None:
        gain = row.relative_holdout
        figure = "no effect published" if gain is None else f"{100 * gain:+.1f}% of the errors avoided on {shots}"
        outcome = f"verifier: {row.verify_verdict}, {figure}"
    else:
        plain = row.ler_plain_classical
        gain = row.delta_ler / plain if plain and row.delta_ler is not None else None
        outcome = "not nominated" + ("" if gain is None else f", {100 * gain:+.1f}% on val shots")
    if row.next_hypothesis_seed:
        outcome += f"; advice: {sanitize(row.next_hypothesis_seed, 120)}"
    feedback = {"correct": row.verify_verdict == "VERIFIED", "target": "", "message": sanitize(outcome, 300)}
    return feedback if gain is None else feedback | {"extra": {"relative": gain}}


def _gain(entry: ExperienceEntry) -> float:
    """Return the verified gain of an experience; 0 if it was not verified."""
    return float((entry.feedback.get("extra") or {}).get("relative") or 0.0) if entry.feedback.get("correct") else 0.0


def _format_note(entry: Entry) -> str:
    if not isinstance(entry, ExperienceEntry):
        return entry.line()
    try:
        description = describe_config(json.loads(entry.action))
    except ValueError:
        description = sanitize(entry.action, 120)
    place = entry.metadata.get("env") or sanitize(entry.obs, 80)
    return f"{place}: {description}: {entry.feedback.get('message', '')}"
