"""Configuration of language models: which backend and model each role asks."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from autoqec import optional
from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients import scripted
from autoqec.extensions.language_models.clients.base import Effort, LanguageModel
from autoqec.extensions.language_models.clients.cassette import CassetteFile, RecordingLM, ReplayLM
from autoqec.extensions.language_models.clients.ledger import Ledger, MeteredLM
from autoqec.extensions.language_models.clients.prices import Price, cost_usd, price_list, set_price
from autoqec.store.model_calls import Usage

if TYPE_CHECKING:
    from autoqec.extensions.language_models.clients.provider import ProviderLM

Backend = Literal["anthropic", "openai", "gemini", "claude", "codex", "scripted"]
_KNOWN_MODELS = (
    "claude-* (Messages API), gpt-* and o* (OpenAI), gemini-* (Google), any name with `base_url` (an endpoint that is "
    "compatible with the Messages API, or with Chat Completions under `backend: openai`; AUTOQEC_<ROLE>_BASE_URL of a "
    "role), backend `claude` or `codex` (command lines), scripted:*"
)
_OPENAI_NAMES = re.compile(r"(gpt|chatgpt|o\d)(?![a-z])")
_PROGRAM_OF: dict[Backend, Backend] = {"anthropic": "claude", "openai": "codex"}  # with models of the same provider
_PROVIDER_OF = {program: provider for provider, program in _PROGRAM_OF.items()}
_PROGRAMS = tuple(_PROGRAM_OF.values())
_WITHOUT_TOOLS = (*_PROGRAMS, "gemini")
ROLE_FIELDS = ("backend", "model", "base_url", "timeout_s", "api_key_env")
LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")


class LMConfig(Contract):
    """One language model.

    Attributes:
        backend: None: chosen by the model's name.
        temperature: Sent if it is set and the backend supports it, else dropped with a warning.
        max_output_tokens: Limit of an answer to `call`; the API's own limit includes thinking and is at least 8192.
        thinking_budget: Tokens for thinking, of Gemini models; dropped with a warning by other backends.
        api_key_env: Environment variable of the key for `base_url`; without it an explicit `base_url` gets no key. The
            backends `claude` and `codex` refuse it.
        timeout_s: Limit of one call with all of its attempts.
        price: US dollars per million tokens, of a model that the price list does not have.
        max_call_usd: Limit that the `claude` command line enforces.
    """

    model: str | None = Field(
        default=None, min_length=1, description="None: the price list's default, or the program's"
    )
    backend: Backend | None = None
    temperature: float = Field(default=0.2, ge=0, le=2)
    max_output_tokens: int = Field(default=2048, ge=1, le=128_000)
    base_url: str | None = Field(default=None, pattern=r"^https?://")
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    effort: Effort | None = None
    thinking_budget: int | None = Field(default=None, ge=-1, description="0: none; -1: as much as the model likes")
    timeout_s: float = Field(default=600.0, gt=0)
    max_retries: int = Field(default=2, ge=0, le=10)
    max_call_usd: float | None = Field(default=None, gt=0)
    price: Price | None = Field(default=None, description="null: that of the price list, if it has one")

    def resolved_backend(self) -> Backend:
        """Return the backend that the model's name stands for; UsageError lists those that are known."""
        if self.backend:
            return self.backend
        name = self.model or price_list().default_model
        if name.startswith(scripted.PREFIX):
            return "scripted"
        if name.startswith("gemini-"):
            return "gemini"
        if _OPENAI_NAMES.match(name):
            return "openai"
        if name.startswith("claude-") or self.base_url:
            return "anthropic"
        raise UsageError(f"no backend for the model {name!r}", location="lm.model", hint=f"choose {_KNOWN_MODELS}")

    def resolved_model(self) -> str:
        """Return the name under which calls are booked, priced and recorded."""
        if self.model:
            return self.model
        backend = self.resolved_backend()
        return backend if backend in ("claude", "codex") else price_list().default_model


class GeminiConfig(LMConfig):
    """A model behind the Gemini API, whatever its name."""

    backend: Backend | None = "gemini"


def require_price(config: LMConfig) -> None:
    """Check that the cost of a call has a known bound, which a budget in dollars needs.

    Raises:
        UsageError: No price of the model is known, so that every call would be refused.
    """
    if config.price is None and config.max_call_usd is None and cost_usd(config.resolved_model(), Usage()) is None:
        known = ", ".join(sorted(price_list().models))
        raise UsageError(
            f"no price is known for the model {config.resolved_model()!r}, so a budget in dollars cannot be kept",
            location="--budget usd",
            hint=f"add --price in=X,out=Y (dollars per million tokens), use --budget tokens=COUNT, or a model with a "
            f"known price: {known}",
        )


def role_config(role: str, config: LMConfig | None = None, environ: Mapping[str, str] | None = None) -> LMConfig:
    """Return `config` with the variables AUTOQEC_<ROLE>_<FIELD> of `ROLE_FIELDS`, which win over its fields.

    Raises:
        UsageError: A variable is invalid, or names a backend that does not have the model of `config`.
    """
    environ = os.environ if environ is None else environ
    fields: dict[str, Any] = (config or LMConfig()).model_dump(exclude_unset=True)
    for field in ROLE_FIELDS:
        name = f"AUTOQEC_{role.upper()}_{field.upper()}"
        if environ.get(name):
            fields[field] = environ[name]
            if field == "backend" and not environ.get(f"AUTOQEC_{role.upper()}_MODEL"):
                _require_model_of_backend(name, environ[name], config or LMConfig())
    try:
        return LMConfig.model_validate(fields)
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location=f"AUTOQEC_{role.upper()}_*") from error


def round_timeout_s(environ: Mapping[str, str] | None = None) -> float:
    """Return the limit of all calls of a round in seconds: AUTOQEC_ROUND_LLM_TIMEOUT_S, by default 30 minutes."""
    name = "AUTOQEC_ROUND_LLM_TIMEOUT_S"
    text = (os.environ if environ is None else environ).get(name) or "1800"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"{text!r} is not a number of seconds above 0", location=f"environment variable {name}")
    return seconds


def _require_model_of_backend(name: str, backend: str, config: LMConfig) -> None:
    """Raise UsageError if the variable `name` chooses a backend that does not have the model of `config`."""
    if config.model is None:
        return
    try:
        own = config.resolved_backend()
    except UsageError:
        return  # a name that only this backend may know
    if backend in _PROGRAMS and backend not in (own, _PROGRAM_OF.get(own)):
        message = f"`{backend}` does not have the model {config.model!r}"
        hint = f"set {name.removesuffix('BACKEND')}MODEL as well, or unset {name}"
        raise UsageError(message, location=name, hint=hint)


def get_lm_client(
    config: LMConfig, *, cassette_file: CassetteFile | None = None, ledger: Ledger | None = None
) -> LanguageModel:
    """Return a language model for `config`, recorded and metered on request; a replay needs no key and no program.

    Raises:
        UsageError: No backend fits the model's name.
        LlmAuthError: There is no key.
    """
    if config.price is not None:
        set_price(config.resolved_model(), config.price)
    lm: LanguageModel
    if cassette_file is not None and cassette_file.mode == "replay":
        lm = ReplayLM(
            cassette_file,
            config.resolved_model(),
            supports_tools=config.resolved_backend() not in _WITHOUT_TOOLS,
            max_output_tokens=config.max_output_tokens,
            max_call_usd=config.max_call_usd,
        )
    else:
        lm = _backend(config)
        lm = lm if cassette_file is None else RecordingLM(lm, cassette_file)
    return lm if ledger is None else MeteredLM(lm, ledger)


def _backend(config: LMConfig) -> LanguageModel:
    backend, model = config.resolved_backend(), config.resolved_model()
    if backend == "scripted":
        return scripted.from_name(model, max_output_tokens=config.max_output_tokens)
    temperature = config.temperature if "temperature" in config.model_fields_set else None
    # Current models of the Messages API reject a temperature; other endpoints may accept it.
    if temperature is not None and (backend in _PROGRAMS or (backend == "anthropic" and config.base_url is None)):
        LOGGER.warning("backend `%s` does not accept `temperature`; it is not sent", backend)
        temperature = None
    if config.thinking_budget is not None and backend != "gemini":
        LOGGER.warning("backend `%s` does not accept `thinking_budget`; it is not sent", backend)
    limits: dict[str, Any] = {
        "effort": config.effort,
        "timeout_s": config.timeout_s,
        "max_output_tokens": config.max_output_tokens,
    }
    if backend not in ("claude", "codex"):
        return _provider(backend)(
            model,
            base_url=config.base_url,
            key_env=config.api_key_env,
            max_retries=config.max_retries,
            temperature=temperature,
            thinking_budget=config.thinking_budget,
            **limits,
        )
    if config.api_key_env is not None:
        raise UsageError(
            f"the program `{backend}` gets no key from {config.api_key_env}: it logs in by itself",
            location="api_key_env",
            hint=f"log in with `{backend}`, or choose backend `{_PROVIDER_OF[backend]}`, which takes the key",
        )
    from autoqec.extensions.language_models.clients.cli_client import CliLM

    return CliLM(backend, config.model, max_call_usd=config.max_call_usd, **limits)


def _provider(backend: Backend) -> type[ProviderLM]:
    """Return the client of a provider. Raises UsageError if its package is not installed."""
    if backend == "anthropic":
        from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM

        return AnthropicLM
    optional.require_installed("openai", extra="openai", location="lm.model")
    from autoqec.extensions.language_models.clients.openai_client import GeminiClient, OpenAIClient

    return GeminiClient if backend == "gemini" else OpenAIClient
