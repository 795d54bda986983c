"""The roles of one run that call language models, with recording, ledger and budget."""

from __future__ import annotations

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.events import LlmBudgetExhausted, LlmGivenUp, LlmUnusable, OnEvent
from autoqec.contracts.history import Begun
from autoqec.contracts.messages import AnalystResponse, CoderResponse, IdeatorResponse
from autoqec.contracts.views import AnalystView, CoderView, IdeatorView
from autoqec.decoders.cost_limits import predict_cost
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.language_models import scripted_policies as scripted_policies  # registers scripted:expert, …
from autoqec.extensions.language_models.budget_left import remaining
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.extensions.language_models.clients.cassette import (
    CassetteFile,
    PaidAnswers,
    PaidAnswersLM,
    settle_recorded_calls,
)
from autoqec.extensions.language_models.clients.config import get_lm_client, round_timeout_s
from autoqec.extensions.language_models.clients.deadline import call_deadline, calls_end_within
from autoqec.extensions.language_models.clients.environment import redact_value
from autoqec.extensions.language_models.clients.errors import BudgetExceededError, CassetteMissError, LlmError
from autoqec.extensions.language_models.clients.ledger import Ledger
from autoqec.extensions.language_models.plugin import ROLES, ModelOptions
from autoqec.extensions.language_models.roles.analyst import LlmAnalyst
from autoqec.extensions.language_models.roles.coder import LlmCoder
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.extensions.language_models.roles.notebook import Notebook
from autoqec.extensions.language_models.roles.record import RoundEvidence, read_evidence
from autoqec.extensions.language_models.trials import Trials
from autoqec.ideators import coder
from autoqec.ideators.hybrid import Hybrid
from autoqec.ideators.search_state import ABORTED_STATUSES
from autoqec.orchestrator.run import Roles, Run
from autoqec.reporting.machine_state import round_statistics
from autoqec.store import atomic, jsonl
from autoqec.store.layout import EDITABLE_CONFIG, EDITABLE_MODULES
from autoqec.system import machine

V = TypeVar("V", IdeatorView, CoderView, AnalystView)
R = TypeVar("R")


class RunTools(Trials):
    """What an opened run lets its language models look up and try out; see `ResearchTools`."""

    def __init__(
        self,
        run: Run,
        attempt: Callable[[], Begun],
        recorded: Path | None,
        ledger: Ledger,
        code_may_change: bool,
    ) -> None:
        super().__init__(run, attempt, recorded)
        self._ledger = ledger
        self.code_may_change, self.constraints = code_may_change, run.env.constraints
        self._machine_snapshot = machine.snapshot()  # taken once
        self._evidence: dict[int, RoundEvidence] = {}

    def predict_cost(self, dsl: PredecoderDSL) -> dict[str, int]:
        """Return the cost of a config with the modules of the package."""
        return predict_cost(self._run.env, dsl)

    def machine(self) -> dict[str, Any]:
        """Return the state of `autoqec machine-state` for the run, without loading torch."""
        return {"machine": self._machine_snapshot} | round_statistics(self._run.memory.history.rows())

    def budget_left(self) -> list[str]:
        """Return what is left of each limit of the run, one line each."""
        run = self._run
        return remaining(run.info, run.memory.state, self._ledger.totals, run.clock.elapsed(), self.hours)

    def read_evidence(self, number: int) -> RoundEvidence:
        """Return what the files of a recorded round say; each round is read once."""
        if number not in self._evidence:
            self._evidence[number] = read_evidence(self._run.layout.round(number))
        return self._evidence[number]

    def code_change(self, branch: str, against: str | None = None) -> str:
        """Return the diff of a branch's modules without the config, "" if the branch is gone.

        Args:
            branch: The branch.
            against: The branch that it is compared with; None or one that is gone: the baseline.
        """
        repo = self._run.repo
        commit, base = repo.rev_parse(branch), repo.rev_parse(against) if against is not None else None
        if commit is None:
            return ""
        base = base or self._run.info.baseline_sha
        paths = [
            entry.path
            for entry in repo.diff_entries(base, commit)
            if entry.path.startswith(f"{EDITABLE_MODULES}/") and entry.path != EDITABLE_CONFIG
        ]
        return repo.diff_text(base, commit, paths) if paths else ""


class LlmRoles:
    """Builds the roles; `budget_message` says why no further call may be made, once that is so."""

    def __init__(self, run: Run, on_event: OnEvent) -> None:
        self._options = options = ModelOptions.of(run.info)
        self._names, self._run, self._on_event = ROLES[run.info.ideator], run, on_event
        self.budget_message: str | None = None
        self._unusable_models: set[str] = set()
        self._round_timeout_s = round_timeout_s()
        self._model_seconds: defaultdict[str, float] = defaultdict(float)  # by attempt
        layout = run.layout
        tape, limits = options.tape, run.info.budget
        if tape is not None and tape.resolve() != layout.cassette:
            shutil.copyfile(tape, layout.cassette)  # the archive of a run contains its cassette
        recorded = None if tape is None else tape.resolve().with_name(layout.trials.name)
        cassette_file = CassetteFile(layout.cassette, "record" if tape is None else "replay")
        tokens = int(limits["tokens"]) if "tokens" in limits else None
        self._ledger = Ledger(layout.ledger, max_usd=limits.get("usd"), max_tokens=tokens)
        code_may_change = options.open_modules and "coder" in self._names
        self.tools = RunTools(run, self._latest_attempt, recorded, self._ledger, code_may_change)
        interrupted = _interrupted_attempts(run) if tape is None else ()
        self._answers = answers = PaidAnswers(layout.cassette, interrupted)
        if tape is None:  # the ids of a replayed cassette are those of another run
            settle_recorded_calls(self._ledger, layout.cassette)
        clients = {
            role: get_lm_client(options.config(role), cassette_file=cassette_file, ledger=self._ledger)
            for role in self._names
        }
        self._clients: dict[str, LanguageModel] = {
            role: PaidAnswersLM(client, answers) for role, client in clients.items()
        }

    def roles(self) -> Roles:
        """Return the roles of the run."""
        ideator = self.ideator()
        return Roles(
            ideator=Hybrid(ideator) if self._run.info.ideator == "hybrid" else ideator,
            coder=self.coder() if "coder" in self._names else coder.code,
            analyst=self.analyst(),
            open_modules=self._options.open_modules and "coder" in self._names,
            stop_reason=lambda state: self.budget_message,
            extra_hours=lambda: self.tools.hours,
        )

    def ideator(self) -> Callable[[IdeatorView], IdeatorResponse | None]:
        """Return the Ideator."""
        lm, checkpoint = self._clients["ideator"], self._path(self._options.ideator_memory)
        if checkpoint is not None:
            from autoqec.extensions.continual.runtime import checkpoint_agents

            agent = checkpoint_agents.ideator(checkpoint, lm)
            return self._with_ledger("ideator", self._with_fallback("ideator", agent))
        notebook = Notebook(
            self._run.layout.notebook,
            attempt=lambda: self._latest_attempt().round_attempt_id,
            interrupted=self._answers.attempts,
            is_repeated=lambda: self._answers.served_last,
        )
        role = LlmIdeator(lm, self.tools, notebook, on_event=self._on_event, on_turn=self._keep_turn)
        return self._with_ledger("ideator", self._with_run_memory(role))

    def _path(self, stored: str | None) -> Path | None:
        return None if stored is None else self._run.layout.repo_root / stored

    def _with_fallback(self, name: str, role: Callable[[V], R | None]) -> Callable[[V], R | None]:
        """Wrap a role: None if its answer is unusable, so that the role without a model takes over."""

        def call_role(view: V) -> R | None:
            try:
                return role(view)
            except (BudgetExceededError, CassetteMissError):
                raise
            except (UsageError, ContractError, LlmError) as error:
                if isinstance(error, LlmError) and error.is_permanent:
                    raise
                self._on_event(LlmGivenUp(role=name, error=type(error).__name__, what=str(error)[:400]))
                return None

        return call_role

    def _with_run_memory(
        self, role: Callable[[IdeatorView], IdeatorResponse | None]
    ) -> Callable[[IdeatorView], IdeatorResponse | None]:
        """Add what earlier runs learned to the view of a role."""
        memory = self._path(self._options.memory)
        if memory is None:
            return role
        from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory

        notes = CrossRunMemory(memory).notes(self._run.env, exclude_run=self._run.info.run_id)
        return lambda view: role(view.model_copy(update={"notes": notes}))

    def coder(self) -> Callable[[CoderView], CoderResponse | None]:
        """Return the Coder."""
        role = LlmCoder(self._clients["coder"], self.tools, on_event=self._on_event, on_turn=self._keep_turn)
        return self._with_ledger("coder", role)

    def analyst(self) -> Callable[[AnalystView], AnalystResponse | None]:
        """Return the Analyst."""
        lm, checkpoint = self._clients["analyst"], self._path(self._options.analyst_memory)
        if checkpoint is not None:
            from autoqec.extensions.continual.runtime import checkpoint_agents

            agent = checkpoint_agents.analyst(checkpoint, lm)
            return self._with_ledger("analyst", self._with_fallback("analyst", agent))
        return self._with_ledger("analyst", LlmAnalyst(lm, on_event=self._on_event, on_turn=self._keep_turn))

    def _with_ledger(self, name: str, role: Callable[[V], R | None]) -> Callable[[V], R | None]:
        """Book the calls of a role under the attempt of its round, and end them with the round's time limit.

        The wrapped role returns None once the budget is used up, and once no call of its model can succeed.
        """
        model = self._clients[name].model

        def call_role(view: V) -> R | None:
            if self.budget_message is not None or model in self._unusable_models:
                return None
            try:
                with self._ledger.round(attempt := self._attempt(view)), self._time_limit(attempt):
                    return role(view)
            except BudgetExceededError as error:
                self.budget_message = f"budget of the language models: {error.message}"
                self._on_event(LlmBudgetExhausted(what=error.message))
                return None
            except LlmError as error:
                if not error.is_permanent:
                    raise
                self._unusable_models.add(model)
                self._on_event(LlmUnusable(role=name, model=model, what=str(error)[:400]))
                return None

        return call_role

    @contextmanager
    def _time_limit(self, attempt: str) -> Iterator[None]:
        """End the calls of the block when those of the attempt took `round_timeout_s`; trials do not count."""
        limit = self._round_timeout_s - self._model_seconds[attempt]
        with calls_end_within(limit):
            try:
                yield
            finally:
                self._model_seconds[attempt] += limit - (call_deadline(math.inf) - time.monotonic())

    def _attempt(self, view: IdeatorView | CoderView | AnalystView) -> str:
        """Return the attempt of a view: the Analyst's by its directory, otherwise the latest."""
        if not isinstance(view, AnalystView):
            return self._latest_attempt().round_attempt_id
        matching = [line for line in self._attempts() if self._run.layout.round(line.round).dir == Path(view.round_dir)]
        return (matching[-1] if matching else self._latest_attempt()).round_attempt_id

    def _attempts(self) -> list[Begun]:
        return [line for line in self._run.memory.history.attempts() if isinstance(line, Begun)]

    def _keep_turn(self, turn: dict[str, Any]) -> None:
        """Append a turn of a model to the transcript of the latest round."""
        layout = self._run.layout.round(self._latest_attempt().round)
        atomic.make_dir(layout.dir)
        jsonl.append(layout.transcript, redact_value(turn))

    def _latest_attempt(self) -> Begun:
        return self._attempts()[-1]


def _interrupted_attempts(run: Run) -> tuple[str, ...]:
    """Return the ids of the last attempts of a run if they ended before anything was planned."""
    ids, rounds = list[str](), run.memory.state.rounds
    for attempt in [*run.memory.attempt_state.attempts.values()][::-1]:
        ended = rounds.get(attempt.id)
        if attempt.planned is not None or (ended is not None and ended.row.status not in ABORTED_STATUSES):
            break
        ids.append(attempt.id)
    return tuple(ids)
