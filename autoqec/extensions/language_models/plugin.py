"""The ideators `llm` and `hybrid` of `autoqec run`: their options, and the roles that call language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.events import Event, LlmCalled
from autoqec.contracts.run_spec import Option, PluginOptions, RunSpec
from autoqec.errors import UsageError
from autoqec.orchestrator.plugin_protocols import Comment, FindingsReader, IdeatorPlugin
from autoqec.orchestrator.run_request import RunRequest

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent
    from autoqec.extensions.language_models.clients.config import LMConfig
    from autoqec.orchestrator.run import Roles, Run

# hybrid has no coder model: its proposals are complete configs.
ROLES = {"llm": ("ideator", "coder", "analyst"), "hybrid": ("ideator", "analyst")}
LIMITS = {"usd": "DOLLARS", "tokens": "COUNT"}


class ModelSettings(Contract):
    """The language model of one role, with everything that the environment or a default decided resolved."""

    backend: str = Field(description="client that asks the model: anthropic, openai, gemini, claude, codex, scripted")
    model: str | None = Field(default=None, description="null: the default model of a command-line client")
    base_url: str | None = Field(default=None, description="endpoint of the API; null: the provider's")
    effort: str | None = Field(default=None, description="reasoning effort; null: the model's default")
    price: dict[str, float] | None = Field(
        default=None,
        description="US dollars per million tokens as `input`, `output` and `cache_read`; null: the price list's",
    )


class ModelOptions(PluginOptions):
    """Options of the language models. `model`, `price` and `effort` are stored as part of `models`."""

    block: ClassVar[str] = "language_models"
    budget_keys: ClassVar[dict[str, str]] = LIMITS

    no_llm: Annotated[bool, Option()] = Field(
        default=False, exclude=True, description="Fail if the chosen ideator calls a language model."
    )
    model: Annotated[str | None, Option()] = Field(
        default=None, exclude=True, description="Language model for --ideator llm and hybrid."
    )
    price: Annotated[str | None, Option("in=X,out=Y")] = Field(
        default=None,
        exclude=True,
        description="Price of the language model in US dollars per million tokens (cache_read=Z for cached ones), for "
        "a model whose price --budget usd does not know.",
    )
    effort: Annotated[Literal["low", "medium", "high", "xhigh", "max"] | None, Option()] = Field(
        default=None,
        exclude=True,
        description="Reasoning effort of the language model; default: that of the model.",
    )
    cassette: Annotated[str | None, Option(path=True)] = Field(
        default=None, description="Replay recorded answers from this file instead of calling a model."
    )
    ideator_memory: Annotated[str | None, Option("CHECKPOINT", path=True)] = Field(
        default=None,
        description="Checkpoint of `autoqec evaluate` whose agent proposes, with its memory; for llm and hybrid.",
    )
    analyst_memory: Annotated[str | None, Option("CHECKPOINT", path=True)] = Field(
        default=None,
        description="Checkpoint of `autoqec evaluate` whose agent nominates, with its memory; for llm and hybrid.",
    )
    memory: Annotated[str | None, Option("FILE", path=True)] = Field(
        default=None,
        description="File with rounds of earlier runs: shown to the language model; this run adds its rounds at the "
        "end.",
    )
    open_modules: Annotated[bool, Option(negatable=True)] = Field(
        default=False,
        description="Let the language model edit the code of the editable modules, not only the config; for llm.",
    )
    models: dict[str, ModelSettings] = Field(default={}, description="language model of each role that asks one")
    tape: Path | None = Field(default=None, exclude=True, description="file from which this process plays answers")

    def config(self, role: str) -> LMConfig:
        """Return the language model of a role: the one stored with the run, otherwise from options and environment."""
        from autoqec.extensions.language_models.clients.config import LMConfig, role_config
        from autoqec.extensions.language_models.clients.prices import parse_price

        if role in self.models:
            stored = LMConfig.model_validate(self.models[role].model_dump(exclude_none=True))
            here = role_config(role)
            return stored.model_copy(update={"timeout_s": here.timeout_s, "api_key_env": here.api_key_env})
        price = parse_price(self.price) if self.price else None
        named = {"model": self.model, "effort": self.effort, "price": price}
        return role_config(role, LMConfig.model_validate({key: value for key, value in named.items() if value}))

    def resolved(self, request: RunRequest) -> Self:
        """Return the options with the model of each role resolved, and what is played instead of asking it."""
        from autoqec.extensions.language_models.clients.prices import parse_price

        changes: dict[str, Any] = {}
        if "model" in request.given:
            changes["models"] = {}
            changes |= {"cassette": self.cassette if "cassette" in request.given else None}
        elif {"effort", "price"} & request.given:  # for the models that the run has
            new: dict[str, Any] = {"effort": self.effort} if "effort" in request.given else {}
            new |= {"price": parse_price(self.price).model_dump(exclude_none=True)} if self.price else {}
            changes["models"] = {role: model.model_copy(update=new) for role, model in self.models.items()}
        options = self.model_copy(update=changes)
        tape = None if options.cassette is None else request.root / options.cassette
        if tape is not None and request.layout is not None and "cassette" not in request.given:
            tape = request.layout.cassette  # the first start copied it
        models = {role: _settings(options.config(role)) for role in ROLES.get(request.spec.ideator, ())}
        return options.model_copy(update={"models": models, "tape": tape})


def _settings(config: LMConfig) -> ModelSettings:
    return ModelSettings(
        backend=config.resolved_backend(),
        # Command-line clients choose their default model themselves.
        model=config.model if config.backend in ("claude", "codex") else config.resolved_model(),
        base_url=config.base_url,
        effort=config.effort,
        price=None if config.price is None else config.price.model_dump(exclude_none=True),
    )


class ModelIdeators(IdeatorPlugin):
    """Ideators that call language models, the Coder and the Analyst that go with them, and the memory of runs."""

    Options: ClassVar[type[ModelOptions]] = ModelOptions

    def check(self, request: RunRequest) -> ModelOptions:
        """Check options, files and credentials; no model is called.

        Raises:
            UsageError: An option is invalid, or contradicts another.
            LlmAuthError: A role needs a model for which there are no credentials.
        """
        ideator, options = request.spec.ideator, ModelOptions.of(request.spec)
        roles = ROLES.get(ideator, ())
        if options.no_llm and roles:
            raise UsageError(f"ideator {ideator} calls a language model", location="--no-llm", hint="--ideator tpe")
        of_models = (options.cassette, options.model, options.effort, options.price)
        if not roles and (any(of_models) or request.spec.budget.keys() & LIMITS.keys()):
            message = (
                f"ideator `{ideator}` calls no language model: "
                "--model, --effort, --price, --cassette, usd and tokens do not apply"
            )
            hint = "choose --ideator llm or hybrid; more training is --scale"
            raise UsageError(message, location="--ideator", hint=hint)
        if "open_modules" in request.given and options.open_modules and "coder" not in roles:
            message = f"ideator `{ideator}` proposes configs only, so no code is edited"
            raise UsageError(message, location="--open-modules", hint="--ideator llm")
        options = options.resolved(request)
        _check_files(options, request)
        _check_models(options, roles, request.spec)
        return options

    def plan(self, request: RunRequest) -> Iterator[str]:
        """Describe each role's model with price and time limit, and what is sent to them."""
        from autoqec.extensions.language_models.clients.config import round_timeout_s
        from autoqec.reporting.text import plain

        options = ModelOptions.of(request.spec)
        for role, model in options.models.items():
            effort = "" if model.effort is None else f", effort {model.effort}"
            endpoint = "" if model.base_url is None else f" at {plain(model.base_url, 200)}"
            limit = f", at most {options.config(role).timeout_s:g} s per call"
            name = model.model or "default model"
            yield f"{role:<9} {name} through {model.backend}{endpoint}{effort}{_price(model)}{limit}"
        if not options.models:
            return
        sent = ["the env", "configs, figures, losses and summaries of the rounds"]
        sent += ["cores, memory and GPU of this machine"]
        sent += ["the editable modules"] if "coder" in options.models and options.open_modules else []
        sent += ["what its tools read: rounds, code of rounds, notes"] if "ideator" in options.models else []
        sent += [f"notes of earlier runs from {options.memory}"] if options.memory else []
        text = f"{'; '.join(sent)}; never the secret or shots of the verification"
        yield f"sent      {'nothing: the answers come from the cassette' if options.cassette else text}"
        yield f"limit     calls of a round take at most {round_timeout_s():g} s"
        if not request.spec.budget.keys() & LIMITS.keys():
            yield "limit     none in dollars or tokens; --budget usd=DOLLARS or tokens=COUNT sets one"

    def build(self, run: Run, on_event: OnEvent) -> Roles:
        """Build the roles; calls are recorded and booked in the run directory.

        If the next call could exceed the budget of the language models, the run ends before another round, and the
        current round is finished by the roles without a model.
        """
        from autoqec.extensions.language_models.llm_roles import LlmRoles

        return LlmRoles(run, on_event).roles()

    def finish(self, run: Run) -> str | None:
        """Add the rounds and lessons of a run to its memory file, each once."""
        from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory
        from autoqec.extensions.language_models.roles.notebook import current_lessons
        from autoqec.reporting.text import pluralize

        memory = ModelOptions.of(run.info).memory
        if memory is None:
            return None
        rows, lessons = run.memory.history.rows(), current_lessons(run.layout.notebook)
        file = CrossRunMemory(run.layout.repo_root / memory)
        learned = file.learn(run.info.run_id, run.env, rows, lessons)
        return f"{pluralize(learned, 'round')} added to {memory}" if learned else None

    def reader(self, model: str) -> FindingsReader:
        """Return what comments on findings with this model."""
        from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, role_config
        from autoqec.extensions.language_models.roles.reader import LlmReader

        calls: list[LlmCalled] = []

        def on_event(event: Event) -> None:
            if isinstance(event, LlmCalled):
                calls.append(event)

        read = LlmReader(get_lm_client(role_config("reader", LMConfig(model=model))), on_event=on_event)

        def comment(findings: Sequence[dict[str, Any]], topic: str) -> tuple[list[Comment] | None, float | None]:
            answer = read(findings, topic)
            costs = [call.cost_usd for call in calls]
            cost = None if None in costs else sum(filter(None, costs))
            points = None if answer is None else [Comment(p.what, p.change, p.rounds) for p in answer.points]
            return points, cost

        return comment

    def variables_elsewhere(self, spec: RunSpec, *, same_machine: bool) -> list[str]:
        """Return the variables of roles, keys and endpoints; refuse an endpoint that is this machine's alone."""
        from autoqec.extensions.language_models import model_access

        options = ModelOptions.of(spec)
        if not same_machine:
            model_access.require_reachable(options)
        return [*model_access.exported_variables(options)]


def _price(model: ModelSettings) -> str:
    """Return the price of a model: the user's, that of the dated price list, or that none is known."""
    from autoqec.extensions.language_models.clients.prices import price_list
    from autoqec.extensions.language_models.clients.scripted import PREFIX

    if model.model is not None and model.model.startswith(PREFIX):
        return ", free"
    known = price_list()
    listed = None if model.price or model.model is None else known.models.get(model.model)
    price = model.price or (listed.model_dump(exclude_none=True) if listed else None)
    if price is None:
        return ", price not known"
    source = "as given" if model.price else f"as of {known.as_of}"
    return f", ${price['input']:g} in and ${price['output']:g} out per million tokens ({source})"


def _check_files(options: ModelOptions, request: RunRequest) -> None:
    from autoqec.extensions.language_models.clients.cassette import CassetteFile

    if options.tape is not None:
        CassetteFile(options.tape, "replay")
    for name, path in (("--ideator-memory", options.ideator_memory), ("--analyst-memory", options.analyst_memory)):
        if path is not None:
            _check_checkpoint(request, name, path)
    if options.memory is not None:
        from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory

        CrossRunMemory(request.root / options.memory)


def _check_checkpoint(request: RunRequest, option: str, path: str) -> None:
    from autoqec.extensions.continual.runtime import checkpoints

    if request.spec.ideator not in ROLES:
        ideator = request.spec.ideator
        message = f"an agent from a checkpoint needs a language model, but ideator `{ideator}` calls none"
        raise UsageError(message, location=option, hint="choose --ideator llm or hybrid")
    checkpoints.load(str(request.root / path))


def _check_models(options: ModelOptions, roles: tuple[str, ...], spec: RunSpec) -> None:
    from autoqec.extensions.language_models import scripted_policies as scripted_policies  # registers scripted:expert
    from autoqec.extensions.language_models.clients.config import get_lm_client, require_price
    from autoqec.extensions.language_models.clients.errors import LlmAuthError

    for role in roles:
        config = options.config(role)
        if "usd" in spec.budget:
            require_price(config)
        if options.tape is None:
            try:
                get_lm_client(config)
            except LlmAuthError as error:
                error.hint = f"{error.hint}; --ideator tpe calls no model"
                raise


plugin = ModelIdeators()
