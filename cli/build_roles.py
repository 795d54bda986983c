"""Who speaks in a run: `--ideator` by name, its models on tape and within a budget. Joins rooms that are blind to
each other: searches, roles through a language model, and the loop."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.cli import paths
from autoqec.contracts.events import LlmBudgetExhausted, LlmGivenUp, OnEvent
from autoqec.contracts.history import Begun
from autoqec.contracts.pins import validate_pins
from autoqec.contracts.settings import ModelSettings
from autoqec.errors import ContractError, UsageError
from autoqec.ideators import analyst, coder
from autoqec.ideators.hybrid import Hybrid
from autoqec.ideators.replay import ReplayIdeator
from autoqec.llm.base import Effort
from autoqec.llm.config import LMConfig, get_lm_client, require_price, role_config
from autoqec.llm.errors import BudgetExceededError, CassetteMissError, LlmError
from autoqec.orchestrator.budget import Budget
from autoqec.orchestrator.run import BUILTIN_IDEATORS, Roles, search
from autoqec.reporting.machine_state import round_statistics
from autoqec.reporting.predict_cost import predict_cost
from autoqec.store import run_log
from autoqec.store.files import load_yaml
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RunState
from autoqec.system import machine

if TYPE_CHECKING:
    from autoqec.llm.base import LanguageModel
    from autoqec.llm.ledger import Ledger
    from autoqec.orchestrator.run import Run, RunContext

View = dict[str, Any]

NAMES = (*BUILTIN_IDEATORS, "llm", "hybrid", "replay")
# hybrid: the search is in charge, and its proposals are taken word for word, so no model stands in the Coder's place.
ROLES = {"llm": ("ideator", "coder", "analyst"), "hybrid": ("ideator", "analyst")}
LLM_LIMITS = ("usd", "tokens")


@dataclass(frozen=True)
class RoleOptions:
    """Which ideator a run has, and the language models of its roles.

    Attributes:
        ideator: one of `NAMES`.
        model: language model of every role that neither `role_models` nor AUTOQEC_<ROLE>_MODEL names one for.
        cassette: recording that is played instead of asking a model.
        replay_of: the older run that `replay` repeats.
        max_usd: limit of what the models may cost in total.
        max_tokens: limit of the tokens of all calls.
        open_surface: whether the Coder may edit code as well as the config.
        ideator_memory: RunTime checkpoint whose agent proposes.
        analyst_memory: RunTime checkpoint whose agent nominates.
        memory: what earlier runs learned; read by the models, extended by every run.
        effort: reasoning effort of every role's model.
        role_models: models stored with the run; they take precedence over `model`, `effort` and the environment.
    """

    ideator: str = "tpe"
    model: str | None = None
    cassette: Path | None = None
    replay_of: str | None = None
    max_usd: float | None = None
    max_tokens: int | None = None
    open_surface: bool = False
    ideator_memory: Path | None = None
    analyst_memory: Path | None = None
    memory: Path | None = None
    effort: Effort | None = None
    role_models: Mapping[str, ModelSettings] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """Roles that a language model takes."""
        return ROLES.get(self.ideator, ())

    def config(self, role: str) -> LMConfig:
        """The language model of a role: the one that the run has stored, else by options and environment."""
        if role in self.role_models:
            return LMConfig.model_validate(self.role_models[role].model_dump(exclude_none=True))
        named = {"model": self.model, "effort": self.effort}
        return role_config(role, LMConfig.model_validate({key: value for key, value in named.items() if value}))

    def resolved_models(self) -> dict[str, ModelSettings]:
        """The language model of each role that asks one, with defaults and environment filled in."""
        configs = {role: self.config(role) for role in self.models}
        return {
            role: ModelSettings(
                backend=config.resolved_backend(),
                # The default of a command-line client is the client's own to choose.
                model=config.model if config.backend in ("claude", "codex") else config.resolved_model(),
                base_url=config.base_url,
                effort=config.effort,
            )
            for role, config in configs.items()
        }


@dataclass(frozen=True)
class RunBudget(Budget):
    """The loop's budget, and one more reason to stop: `also` names it, or is None while there is none."""

    stop_condition: Callable[[RunState], str | None] = field(default=lambda state: None)

    def exhausted(self, state: RunState, elapsed_s: float, n_running: int = 0) -> str | None:
        return super().exhausted(state, elapsed_s, n_running) or self.stop_condition(state)


def split_budget(text: str) -> tuple[Budget, dict[str, float]]:
    """`rounds=20,usd=3,tokens=200000` -> the loop's limits, and those of the models."""
    rest, llm_limits = [], {}
    for part in (part.strip() for part in text.split(",") if text):
        key, _, value = part.partition("=")
        if key not in LLM_LIMITS:
            rest.append(part)
            continue
        if key in llm_limits:
            raise UsageError(f"`{key}` is given twice", location="--budget", hint=f"{key}={value}")
        try:
            llm_limits[key] = float(value)
        except ValueError:
            llm_limits[key] = 0.0
        if not 0 < llm_limits[key] < float("inf"):
            raise UsageError(f"{part!r} is no limit", location="--budget", hint="usd=DOLLARS or tokens=COUNT")
    return Budget.parse(",".join(rest)), llm_limits


def pins_of(texts: Sequence[str]) -> dict[str, Any]:
    """`training.loop=async`, … -> the knobs that every proposal holds; values as the config's file spells them."""
    pins: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key in pins or not (key and value):
            fault = f"`{key}` is pinned twice" if key in pins else f"{text!r} is no KEY=VALUE"
            raise UsageError(fault, location="--pin", hint="--pin training.loop=async")
        pins[key] = load_yaml(value, location=f"--pin {key}")
    try:
        return validate_pins(pins)
    except ContractError as error:
        raise UsageError(error.message, location="--pin", hint=error.hint or "give --pin another VALUE") from error


def check(choice: RoleOptions, root: Path) -> None:
    """What can be found wrong before a run exists. UsageError or LlmAuthError; nothing is written or asked."""
    if choice.ideator not in NAMES:
        raise UsageError(f"unknown ideator {choice.ideator!r}", location="--ideator", hint=f"one of {', '.join(NAMES)}")
    if (choice.ideator == "replay") != (choice.replay_of is not None):
        raise UsageError(
            "belongs to --ideator replay, which needs it", location="--replay-of", hint="name an older run"
        )
    if choice.replay_of is not None:
        _load_replay(choice.replay_of, root)
    if not choice.models and (choice.cassette or choice.model or choice.max_usd or choice.max_tokens):
        what = f"ideator `{choice.ideator}` asks no language model, so it takes no model, cassette, dollars or tokens"
        raise UsageError(what, location="--ideator", hint="choose --ideator llm or hybrid")
    if choice.cassette is not None and not choice.cassette.is_file():
        raise UsageError("the cassette does not exist", location=str(choice.cassette), hint="record one first")
    for option, place in (("--ideator-memory", choice.ideator_memory), ("--analyst-memory", choice.analyst_memory)):
        if place is not None:
            _check_checkpoint(choice, option, place)
    if choice.memory is not None:
        from autoqec.continual.runtime.run_memory import CrossRunMemory

        CrossRunMemory(choice.memory)
    for role in choice.models:
        config = choice.config(role)
        config.resolved_backend()
        if choice.max_usd is not None:
            require_price(config)
        if choice.cassette is None:
            get_lm_client(config)


def _check_checkpoint(choice: RoleOptions, option: str, place: Path) -> None:
    from autoqec.continual.runtime import checkpoints

    if not choice.models:
        what = f"an agent from a checkpoint asks a language model, and ideator `{choice.ideator}` asks none"
        raise UsageError(what, location=option, hint="choose --ideator llm or hybrid")
    checkpoints.load(str(place))


def learn(choice: RoleOptions, run: Run) -> int:
    """Put what the run's rounds taught into `choice.memory`; how many were new to it. Each is learned once."""
    if choice.memory is None:
        return 0
    from autoqec.continual.runtime.run_memory import CrossRunMemory

    return CrossRunMemory(choice.memory).learn(run.info.run_id, run.env, run.memory.history.rows())


def build_roles(
    choice: RoleOptions, run: RunContext, on_event: OnEvent, budget: Budget | None = None
) -> tuple[Roles, RunBudget]:
    """The roles of an opened run, and the loop's limits; calls are taped and booked in the run's directory.

    A budget that the next call could break ends the run before a further round; the round under way is finished by
    the roles without a model.
    """
    limits = asdict(budget or Budget())
    if choice.ideator in BUILTIN_IDEATORS:
        return Roles(search(choice.ideator)), RunBudget(**limits)
    if choice.replay_of is not None:
        replay = _load_replay(choice.replay_of, run.repo.root)
        return Roles(replay), RunBudget(**limits, stop_condition=partial(_replay_exhausted, replay))
    models = _LlmRoles(choice, run, run_log.logged(on_event))
    ideator = models.ideator()
    return (
        Roles(
            ideator=Hybrid(ideator) if choice.ideator == "hybrid" else ideator,
            coder=models.coder() if "coder" in choice.models else coder.code,
            analyst=models.analyst() if "analyst" in choice.models else analyst.analyse,
            open_surface=choice.open_surface and "coder" in choice.models,
        ),
        RunBudget(**limits, stop_condition=lambda state: models.budget_message),
    )


class _LlmRoles:
    """The roles through language models of one run; `over` says why no further call may be made."""

    def __init__(self, choice: RoleOptions, run: RunContext, on_event: OnEvent) -> None:
        from autoqec.llm.cassette import CassetteFile
        from autoqec.llm.ledger import Ledger

        self._choice, self._run, self._on_event = choice, run, on_event
        self.budget_message: str | None = None
        layout = run.layout
        if choice.cassette is not None and choice.cassette.resolve() != layout.cassette:
            shutil.copyfile(choice.cassette, layout.cassette)  # a run's cassette travels in its archive
        cassette_file = CassetteFile(layout.cassette, "record" if choice.cassette is None else "replay")
        tokens = None if choice.max_tokens is None else int(choice.max_tokens)
        self._ledger: Ledger = Ledger(layout.ledger, max_usd=choice.max_usd, max_tokens=tokens)
        self._clients: dict[str, LanguageModel] = {
            role: get_lm_client(choice.config(role), cassette_file=cassette_file, ledger=self._ledger)
            for role in choice.models
        }

    def ideator(self) -> Callable[[View], Any]:
        from autoqec.ideators.llm_roles import LlmIdeator

        lm, checkpoint = self._clients["ideator"], self._choice.ideator_memory
        if checkpoint is not None:
            from autoqec.continual.runtime import checkpoint_agents

            return self._with_ledger(self._with_fallback("ideator", checkpoint_agents.ideator(checkpoint, lm)))
        cost = partial(predict_cost, self._run.env_text)
        role = LlmIdeator(lm, on_event=self._on_event, predict_cost=cost, machine=self._machine())
        return self._with_ledger(self._with_run_memory(role))

    def _machine(self) -> Callable[[], dict[str, Any]]:
        """What `machine_state` says of the run, without loading torch; the machine itself is looked at once."""
        state = {"machine": machine.snapshot()}
        return lambda: state | round_statistics(self._run.memory.history.rows())

    def _with_fallback(self, name: str, role: Callable[[View], Any]) -> Callable[[View], Any]:
        """The role; None where its answer can't be used, so that the one without a model takes the round."""

        def call_role(view: View) -> Any:
            try:
                return role(view)
            except (BudgetExceededError, CassetteMissError):
                raise
            except (UsageError, ContractError, LlmError) as error:
                self._on_event(LlmGivenUp(role=name, error=type(error).__name__, what=str(error)[:400]))
                return None

        return call_role

    def _with_run_memory(self, role: Callable[[View], Any]) -> Callable[[View], Any]:
        """The role, told what earlier runs learned."""
        if self._choice.memory is None:
            return role
        from autoqec.continual.runtime.run_memory import CrossRunMemory

        notes = CrossRunMemory(self._choice.memory).notes(self._run.env, exclude_run=self._run.info.run_id)
        return lambda view: role(view | {"notes": notes})

    def coder(self) -> Callable[[View], Any]:
        from autoqec.ideators.llm_roles import LlmCoder

        cost = partial(predict_cost, self._run.env_text)
        limits = self._run.env.constraints.dump()
        return self._with_ledger(
            LlmCoder(self._clients["coder"], on_event=self._on_event, predict_cost=cost, constraints=limits)
        )

    def analyst(self) -> Callable[[View], Any]:
        from autoqec.ideators.llm_roles import LlmAnalyst

        lm, checkpoint = self._clients["analyst"], self._choice.analyst_memory
        if checkpoint is not None:
            from autoqec.continual.runtime import checkpoint_agents

            return self._with_ledger(self._with_fallback("analyst", checkpoint_agents.analyst(checkpoint, lm)))
        return self._with_ledger(LlmAnalyst(lm, on_event=self._on_event))

    def _with_ledger(self, role: Callable[[View], Any]) -> Callable[[View], Any]:
        """The role with its calls booked under the round's attempt; None once the budget is used up."""

        def call_role(view: View) -> Any:
            if self.budget_message is not None:
                return None
            try:
                with self._ledger.round(self._attempt(view)):
                    return role(view)
            except BudgetExceededError as error:
                self.budget_message = f"the models' budget: {error.message}"
                self._on_event(LlmBudgetExhausted(what=error.message))
                return None

        return call_role

    def _attempt(self, view: View) -> str:
        """The attempt whose round this is: the Analyst's by its directory, else the youngest."""
        begun_lines = [line for line in self._run.memory.history.attempts() if isinstance(line, Begun)]
        place = view.get("round_dir")
        matching = [one for one in begun_lines if place and self._run.layout.round(one.round).dir == Path(place)]
        return (matching or begun_lines)[-1].round_attempt_id


def _load_replay(name: str, root: Path) -> ReplayIdeator:
    layout: RunLayout = paths.run_layout(name, root=root)
    replay = ReplayIdeator(History(layout).rows())
    if not len(replay):
        raise UsageError("that run holds no proposals", location=f"run {name}", hint="autoqec show")
    return replay


def _replay_exhausted(replay: ReplayIdeator, state: RunState) -> str | None:
    replayed = state.totals.finished
    return f"all {len(replay)} proposals of the older run were made" if replayed >= len(replay) else None
