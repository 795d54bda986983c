"""RunHistoryQADataset: questions about finished runs: verdict, gain, best of four designs, cause of a failure."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import Verdict
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.environments.base import EnvDataset, EnvDatasetConfig, Environment
from autoqec.extensions.continual.environments.mcq import MCQEnv
from autoqec.store import jsonl

Topic = Literal["verdict", "gain", "best", "cause"]
VERDICTS = get_args(Verdict)
FAILURE_STATUSES = ("compile_error", "train_error", "killed_by_safety")
# Upper bounds of the relative reduction of the logical error rate on validation shots.
GAIN_BINS = (
    (-0.01, "worse by more than 1%"),
    (0.01, "within 1%"),
    (0.05, "better by 1% to 5%"),
    (0.15, "better by 5% to 15%"),
)
TOP_GAIN_BIN = "better by more than 15%"
MAX_REASON_CHARS = 300  # shown of a status reason, which is text of another program


@dataclass(frozen=True)
class RecordedRound:
    """One row of history with the name of its run."""

    run: str
    row: HistoryRow

    @property
    def id(self) -> str:
        """Identifier of the round."""
        return f"{self.run}/round_{self.row.round}"


class RunHistoryQADatasetConfig(EnvDatasetConfig):
    """Config of RunHistoryQADataset; `runs` are run directories."""

    kind: Literal["ledger"] = "ledger"
    runs: tuple[str, ...] = Field(min_length=1)
    topics: tuple[Topic, ...] = get_args(Topic)
    of_four: int = Field(default=20, ge=0, description="questions of the kind `best`, drawn by `seed`")
    seed: int = Field(default=0, ge=0)

    def resolved(self, base: Path) -> Self:
        """Return the config with absolute paths; relative ones are relative to `base`."""
        return self.model_copy(update={"runs": tuple(str((base / run).resolve()) for run in self.runs)})


class RunHistoryQADataset(EnvDataset[RunHistoryQADatasetConfig]):
    """Questions in the order of runs and rounds. A row that cannot be read is recorded in `errors`."""

    def __init__(self, config: RunHistoryQADatasetConfig, *, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger=logger)

    def load_dataset(self) -> list[Environment]:
        """Build the questions of all topics."""
        rounds = [recorded for run in self.config.runs for recorded in self._rounds(Path(run))]
        makers = {"verdict": verdict_questions, "gain": gain_questions, "cause": cause_questions}
        questions: list[Environment] = []
        for topic in self.config.topics:
            if topic == "best":
                questions += best_of_four_questions(rounds, self.config.of_four, self.config.seed)
            else:
                questions += makers[topic](rounds)
        if not questions:
            raise UsageError(
                "no question can be asked about these runs", location="dataset.runs", hint="name other runs"
            )
        return questions

    def _rounds(self, run: Path) -> Iterator[RecordedRound]:
        history = run / "history.jsonl"
        if not history.is_file():
            raise UsageError("history.jsonl is missing", location=str(run), hint="`autoqec show` lists the runs")
        for number, line in enumerate(jsonl.read(history), start=1):
            try:
                row = HistoryRow.read(line, location=f"{history}:{number}")
            except ContractError as error:
                self.errors.append(str(error))
                continue
            if row.refers_to_attempt is None and row.dsl_config is not None:
                yield RecordedRound(run.name, row)


def verdict_questions(rounds: Sequence[RecordedRound]) -> Iterator[MCQEnv]:
    """Questions for the verdict, given what the Runner measured."""
    for recorded in rounds:
        row = recorded.row
        if row.verification is not None and row.val_shots:
            question = verdict_question(row.dsl_config or {}, row, row.verification.terms.shots)
            yield _mcq(recorded, "verdict", question, VERDICTS, row.verification.verdict)


def verdict_question(config: dict[str, Any], measured: RoundMetrics, shots: str) -> str:
    """Return the question for a verdict: config and validation counts, not the figures of the verification.

    Args:
        config: The config of the predecoder.
        measured: What the Runner measured.
        shots: How text names the verifier's shots.
    """
    counts = f"On {measured.val_shots} validation shots plain matching erred {measured.val_errors_plain} times, "
    counts += f"the predecoder {measured.val_errors_predecoder} times."
    return f"{_design(config)}\n{counts}\nWhat is the verdict of the verifier, on {shots}?"


def gain_questions(rounds: Sequence[RecordedRound]) -> Iterator[MCQEnv]:
    """Questions for sign and size of the gain, given the design alone."""
    for recorded in rounds:
        relative = _relative_gain(recorded.row)
        if relative is not None:
            question = (
                f"{_design(recorded.row.dsl_config)}\nHow did its logical error rate compare with plain matching?"
            )
            yield _mcq(recorded, "gain", question, [*(name for _, name in GAIN_BINS), TOP_GAIN_BIN], gain_bin(relative))


def gain_bin(relative: float) -> str:
    """Return the bin of a relative reduction; an upper bound belongs to its bin."""
    return next((name for bound, name in GAIN_BINS if relative <= bound), TOP_GAIN_BIN)


def cause_questions(rounds: Sequence[RecordedRound]) -> Iterator[MCQEnv]:
    """Questions for the cause of a failure, given its message."""
    for recorded in rounds:
        if recorded.row.status in FAILURE_STATUSES:
            reason = " ".join((recorded.row.status_reason or "").split())[:MAX_REASON_CHARS]
            excerpt = f"The round failed with this message:\n<data>{reason}</data>"
            question = f"{_design(recorded.row.dsl_config)}\n{excerpt}\nWhat was it?"
            yield _mcq(recorded, "cause", question, FAILURE_STATUSES, recorded.row.status)


def best_of_four_questions(rounds: Sequence[RecordedRound], count: int, seed: int) -> Iterator[MCQEnv]:
    """Questions for the best of four designs of one run; sets with a tie for the best are skipped."""
    rng = random.Random(seed)
    by_run: dict[str, list[RecordedRound]] = {}
    for recorded in rounds:
        if recorded.row.ler_predecoder is not None:
            by_run.setdefault(recorded.run, []).append(recorded)
    pools = [pool for pool in by_run.values() if len(pool) >= 4]
    for number in range(count if pools else 0):
        four = rng.sample(rng.choice(pools), 4)
        rates = [float(recorded.row.ler_predecoder or 0.0) for recorded in four]
        if rates.count(min(rates)) == 1:
            question = "Which of these designs had the lowest logical error rate?"
            options = [json.dumps(recorded.row.dsl_config, sort_keys=True) for recorded in four]
            name, answer = f"{four[0].run}/best_{number + 1}", rates.index(min(rates))
            yield MCQEnv(question, answer, {"topic": "best"}, choices=options, env_id=name)


def _mcq(recorded: RecordedRound, topic: Topic, question: str, choices: Sequence[str], answer: str) -> MCQEnv:
    metadata = {"topic": topic, "round": recorded.id}
    return MCQEnv(question, answer, metadata, choices=list(choices), env_id=f"{recorded.id}/{topic}")


def _design(config: dict[str, Any] | None) -> str:
    return f"A predecoder was trained with this config: {json.dumps(config, sort_keys=True)}"


def _relative_gain(row: HistoryRow) -> float | None:
    plain, candidate = row.val_errors_plain, row.val_errors_predecoder
    return None if not plain or candidate is None else (plain - candidate) / plain
