"""Options of the roles: which ideator and language models a run uses, checked before the run exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoqec import locate
from autoqec.contracts.pins import validate_pins
from autoqec.contracts.settings import ModelSettings
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.language_models.clients.base import Effort
from autoqec.extensions.language_models.clients.cassette import CassetteFile
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, require_price, role_config
from autoqec.extensions.language_models.clients.errors import LlmAuthError
from autoqec.extensions.language_models.clients.prices import Price
from autoqec.ideators import scripted_policies as scripted_policies  # registers scripted:expert and scripted:novice
from autoqec.ideators.replay import ReplayIdeator
from autoqec.orchestrator.budget import Budget
from autoqec.orchestrator.run import BUILTIN_IDEATORS
from autoqec.store.files import load_yaml
from autoqec.store.history import History
from autoqec.store.layout import RunLayout

NAMES = (*BUILTIN_IDEATORS, "llm", "hybrid", "replay")
# hybrid has no coder model: its proposals are complete configs.
ROLES = {"llm": ("ideator", "coder", "analyst"), "hybrid": ("ideator", "analyst")}
LLM_LIMITS = ("usd", "tokens")


@dataclass(frozen=True)
class RoleOptions:
    """Which ideator a run has, and the language models of its roles.

    Attributes:
        ideator: One of `NAMES`.
        model: Language model of every role that neither `role_models` nor AUTOQEC_<ROLE>_MODEL names one for.
        cassette: Recording that is played instead of asking a model.
        replay_of: The older run that `replay` repeats.
        max_usd: Limit of what the models may cost in total.
        max_tokens: Limit of the tokens of all calls.
        open_modules: Whether the Coder may edit code as well as the config.
        ideator_memory: RunTime checkpoint whose agent proposes.
        analyst_memory: RunTime checkpoint whose agent nominates.
        memory: What earlier runs learned; read by the models, extended by every run.
        effort: Reasoning effort of every role's model.
        price: Of every role's model, in place of the price list's.
        role_models: Models stored with the run; they take precedence over `model`, `effort`, `price` and the
            environment.
    """

    ideator: str = "tpe"
    model: str | None = None
    cassette: Path | None = None
    replay_of: str | None = None
    max_usd: float | None = None
    max_tokens: int | None = None
    open_modules: bool = False
    ideator_memory: Path | None = None
    analyst_memory: Path | None = None
    memory: Path | None = None
    effort: Effort | None = None
    price: Price | None = None
    role_models: Mapping[str, ModelSettings] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """Roles that call a language model."""
        return ROLES.get(self.ideator, ())

    def config(self, role: str) -> LMConfig:
        """Return the language model of a role: the one stored with the run, otherwise from options and environment."""
        if role in self.role_models:
            stored = LMConfig.model_validate(self.role_models[role].model_dump(exclude_none=True))
            here = role_config(role)
            return stored.model_copy(update={"timeout_s": here.timeout_s, "api_key_env": here.api_key_env})
        named = {"model": self.model, "effort": self.effort, "price": self.price}
        return role_config(role, LMConfig.model_validate({key: value for key, value in named.items() if value}))

    def resolved_models(self) -> dict[str, ModelSettings]:
        """Return the language model of each role, with defaults and environment variables filled in."""
        configs = {role: self.config(role) for role in self.models}
        return {
            role: ModelSettings(
                backend=config.resolved_backend(),
                # Command-line clients choose their default model themselves.
                model=config.model if config.backend in ("claude", "codex") else config.resolved_model(),
                base_url=config.base_url,
                effort=config.effort,
                price=None if config.price is None else config.price.model_dump(exclude_none=True),
            )
            for role, config in configs.items()
        }


def split_budget(text: str) -> tuple[Budget, dict[str, float]]:
    """Parse `rounds=20,usd=3,tokens=200000` into the limits of the loop and those of the language models."""
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
            raise UsageError(f"{part!r} is not a limit", location="--budget", hint="usd=DOLLARS or tokens=COUNT")
    return Budget.parse(",".join(rest)), llm_limits


def parse_pins(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `training.loop=async`, … into config options that every proposal keeps; values are YAML."""
    pins: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key in pins or not (key and value):
            message = f"`{key}` is pinned twice" if key in pins else f"{text!r} is not KEY=VALUE"
            raise UsageError(message, location="--pin", hint="--pin training.loop=async")
        pins[key] = load_yaml(value, location=f"--pin {key}")
    try:
        return validate_pins(pins)
    except ContractError as error:
        raise UsageError(error.message, location="--pin", hint=error.hint or "choose another VALUE") from error


def check_role_options(choice: RoleOptions, root: Path) -> None:
    """Check the options before a run exists; writes nothing and calls no model.

    Raises:
        UsageError: An option is invalid, or contradicts another.
        LlmAuthError: A role needs a model for which there are no credentials.
    """
    if choice.ideator not in NAMES:
        raise UsageError(f"unknown ideator {choice.ideator!r}", location="--ideator", hint=f"one of {', '.join(NAMES)}")
    if (choice.ideator == "replay") != (choice.replay_of is not None):
        raise UsageError(
            "must be given with --ideator replay, and only then", location="--replay-of", hint="--replay-of RUN"
        )
    if choice.replay_of is not None:
        load_replay(choice.replay_of, root)
    of_models = (choice.cassette, choice.model, choice.effort, choice.price, choice.max_usd, choice.max_tokens)
    if not choice.models and any(of_models):
        message = (
            f"ideator `{choice.ideator}` calls no language model: "
            "--model, --effort, --price, --cassette, usd and tokens do not apply"
        )
        raise UsageError(message, location="--ideator", hint="choose --ideator llm or hybrid; more training is --scale")
    _check_files(choice)
    for role in choice.models:
        config = choice.config(role)
        config.resolved_backend()
        if choice.max_usd is not None:
            require_price(config)
        if choice.cassette is None:
            _check_credentials(config)


def _check_credentials(config: LMConfig) -> None:
    try:
        get_lm_client(config)
    except LlmAuthError as error:
        error.hint = f"{error.hint}; --ideator tpe calls no model"
        raise


def _check_files(choice: RoleOptions) -> None:
    if choice.cassette is not None:
        CassetteFile(choice.cassette, "replay")
    for option, path in (("--ideator-memory", choice.ideator_memory), ("--analyst-memory", choice.analyst_memory)):
        if path is not None:
            _check_checkpoint(choice, option, path)
    if choice.memory is not None:
        from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory

        CrossRunMemory(choice.memory)


def _check_checkpoint(choice: RoleOptions, option: str, path: Path) -> None:
    from autoqec.extensions.continual.runtime import checkpoints

    if not choice.models:
        message = f"an agent from a checkpoint needs a language model, but ideator `{choice.ideator}` calls none"
        raise UsageError(message, location=option, hint="choose --ideator llm or hybrid")
    checkpoints.load(str(path))


def load_replay(name: str, root: Path) -> ReplayIdeator:
    """Return the ideator that repeats the proposals of an older run."""
    layout: RunLayout = locate.run_layout(name, root=root)
    replay = ReplayIdeator(History(layout).rows())
    if not len(replay):
        raise UsageError("the run has no proposals", location=f"run {name}", hint="autoqec show")
    return replay
