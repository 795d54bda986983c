"""Builds the roles of an opened run, and the limits that end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from autoqec.contracts.events import OnEvent
from autoqec.extensions.language_models.llm_roles import LlmRoles
from autoqec.extensions.language_models.roles.notebook import current_lessons
from autoqec.ideators import analyst, coder
from autoqec.ideators.hybrid import Hybrid
from autoqec.ideators.replay import ReplayIdeator
from autoqec.launch.role_options import RoleOptions, load_replay
from autoqec.orchestrator.budget import Budget, Clock
from autoqec.orchestrator.run import BUILTIN_IDEATORS, Roles, search
from autoqec.store import run_log
from autoqec.store.run_state import RunState

if TYPE_CHECKING:
    from autoqec.orchestrator.run import Run, RunContext


@dataclass(frozen=True)
class RunBudget(Budget):
    """The budget of the loop with one more stop condition, which returns the reason or None.

    Attributes:
        stop_condition: Called before every round.
        extra_hours: Compute hours that the rows of the run do not contain: those of trials.
    """

    stop_condition: Callable[[RunState], str | None] = field(default=lambda state: None)
    extra_hours: Callable[[], float] = field(default=lambda: 0.0)

    def used_hours(self, state: RunState, kind: str) -> float:
        """Return the hours of all rounds and trials."""
        return super().used_hours(state, kind) + (0.0 if kind == "gpu" else self.extra_hours())

    def exhausted(self, state: RunState, elapsed_s: float, n_running: int = 0) -> str | None:
        """Return the limit that is reached; None if there is none."""
        return super().exhausted(state, elapsed_s, n_running) or self.stop_condition(state)


def learn(choice: RoleOptions, run: Run) -> int:
    """Add the rounds and lessons of a run to `choice.memory`, each once; return how many were new."""
    if choice.memory is None:
        return 0
    from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory

    lessons = current_lessons(run.layout.notebook)
    return CrossRunMemory(choice.memory).learn(run.info.run_id, run.env, run.memory.history.rows(), lessons)


def build_roles(
    choice: RoleOptions,
    run: RunContext,
    on_event: OnEvent,
    budget: Budget | None = None,
    clock: Clock | None = None,
) -> tuple[Roles, RunBudget]:
    """Build the roles of an opened run and the limits that end it.

    Calls are recorded and booked in the run directory. If the next call could exceed the budget of the language models,
    the run ends before another round, and the current round is finished by the roles without a model.

    Args:
        choice: The roles.
        run: The run.
        on_event: Receives the events of the roles.
        budget: Limits besides those of the language models.
        clock: Time that counts for the limit `hours`, as the Ideator reads it.
    """
    limits = asdict(budget or Budget())
    if choice.ideator in BUILTIN_IDEATORS:
        return Roles(search(choice.ideator)), RunBudget(**limits)
    if choice.replay_of is not None:
        replay = load_replay(choice.replay_of, run.repo.root)
        return Roles(replay), RunBudget(**limits, stop_condition=partial(_replay_exhausted, replay))
    models = LlmRoles(choice, run, run_log.logged(on_event), clock or Clock())
    ideator = models.ideator()
    return (
        Roles(
            ideator=Hybrid(ideator) if choice.ideator == "hybrid" else ideator,
            coder=models.coder() if "coder" in choice.models else coder.code,
            analyst=models.analyst() if "analyst" in choice.models else analyst.analyse,
            open_modules=choice.open_modules and "coder" in choice.models,
        ),
        RunBudget(**limits, stop_condition=lambda state: models.budget_message, extra_hours=lambda: models.tools.hours),
    )


def _replay_exhausted(replay: ReplayIdeator, state: RunState) -> str | None:
    replayed = state.totals.finished
    return f"all {len(replay)} proposals of the older run were repeated" if replayed >= len(replay) else None
