"""What every language model has in common: a Request goes in, a Response or a typed error comes out."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from autoqec.contracts.base import Contract, canonical_json, first_validation_error, sha256_json
from autoqec.extensions.language_models.clients import prices
from autoqec.extensions.language_models.clients.errors import LlmBadAnswerError, LlmError
from autoqec.store.model_calls import Usage

# Thinking counts into max_tokens, so a small cap cuts answers off before they begin.
MIN_MAX_TOKENS = 8192
# One answer beyond this is no answer: the largest reply of the contracts holds eight files of 200 kB.
MAX_RESPONSE_CHARS = 2_000_000

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Tool(Contract):
    """A tool that the model may call. `input_schema` is a JSON schema of type object."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str
    input_schema: dict[str, Any]


class ToolCall(Contract):
    """One call of a tool by the model."""

    id: str
    name: str
    input: dict[str, Any]


class Message(Contract):
    """One turn. Blocks have the form of the Messages API; a string stands for one text block."""

    role: Literal["user", "assistant"]
    content: str | tuple[dict[str, Any], ...]


class Request(Contract):
    """One call.

    Attributes:
        role: Who asks (ideator, coder, analyst, agent ...), for configuration and the ledger.
        system: Blocks, the stable part first; all but the last, or the only one, are cached if the backend can.
        context: Blocks above the first turn. Those of an earlier call stay the same and new ones follow them, so that
            a backend with a cache reads the earlier ones from it.
        aside: Text below the first turn that is not part of the fingerprint: it depends on the machine, or follows
            from earlier answers.
        output: Model that the answer must fit; numeric bounds are checked here, not by the provider.
        max_tokens: Limit of the answer, thinking included.
    """

    role: str = "agent"
    system: tuple[str, ...] = ()
    messages: tuple[Message, ...] = Field(min_length=1)
    context: tuple[str, ...] = ()
    aside: str = ""
    output: type[BaseModel] | None = Field(default=None, exclude=True)
    tools: tuple[Tool, ...] = ()
    max_tokens: int = Field(default=MIN_MAX_TOKENS, ge=MIN_MAX_TOKENS, le=128_000)
    effort: Effort | None = None

    def fingerprint(self, model: str) -> str:
        """Return the SHA-256 of all that can change the answer, except `aside`."""
        schema = self.output.model_json_schema() if self.output else None
        fields = {name: value for name, value in self.dump().items() if name != "aside"}
        return sha256_json({"model": model, "schema": schema, **fields})

    def rendered_messages(self, *, with_context: bool = True) -> tuple[Message, ...]:
        """Return the messages as a backend sends them.

        Args:
            with_context: Whether the first turn begins with `context`, for backends that send it as plain text.
        """
        first, *more = self.messages
        above = self.context if with_context else ()
        if not (above or self.aside) or not isinstance(first.content, str):
            return self.messages
        content = "\n".join(filter(None, (*above, first.content, self.aside)))
        return (first.model_copy(update={"content": content}), *more)

    def text(self) -> str:
        """Return everything the model reads as one string, for estimates."""
        parts = [*self.system, *(_text_of(message.content) for message in self.rendered_messages())]
        parts += [canonical_json(tool.dump()) for tool in self.tools]
        if self.output:
            parts.append(canonical_json(self.output.model_json_schema()))
        return "\n\n".join(parts)


class Response(Contract):
    """One answer.

    Attributes:
        blocks: The turn in the provider's form, to be sent back unchanged in a tool loop.
        cost_usd: None if no price is known.
        lost_attempts: Earlier attempts of this call that were cut off; their cost is unknown.
    """

    text: str
    parsed: Any = Field(default=None, exclude=True, description="an instance of the request's `output`, or None")
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage
    stop_reason: str
    model: str
    cost_usd: float | None = None
    duration_ms: int = Field(ge=0)
    blocks: tuple[dict[str, Any], ...] = ()
    lost_attempts: int = Field(default=0, ge=0)

    def turn(self) -> Message:
        """Return this answer as the assistant's turn of the next request."""
        return Message(role="assistant", content=self.blocks or self.text)


class LanguageModel:
    """A backend, or a wrapper around one. Instances may be shared by threads.

    Attributes:
        model: Name under which calls are booked and priced.
        supports_tools: Whether a request may carry tools.
        max_output_tokens: Limit of an answer to `call`; the API's own limit is at least `MIN_MAX_TOKENS`.
    """

    model: str
    supports_tools: bool = True
    max_output_tokens: int = MIN_MAX_TOKENS

    def complete(self, request: Request) -> Response:
        """Answer the request, or raise an LlmError."""
        raise NotImplementedError

    def count_tokens(self, request: Request) -> int:
        """Return the prompt tokens: exact if the provider counts, else an upper estimate."""
        return estimate_tokens(request.text())

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        return prices.max_cost_usd(self.model, prompt_tokens, request.max_tokens)

    def call(self, system_prompt: str, user_prompt: str) -> str:
        """Answer a system prompt and a user prompt with text."""
        system = (system_prompt,) if system_prompt else ()
        turn = Message(role="user", content=user_prompt)
        allowance = max(MIN_MAX_TOKENS, self.max_output_tokens)
        return self.complete(Request(system=system, messages=(turn,), max_tokens=allowance)).text


class WrappedLM(LanguageModel):
    """A language model in front of another one, which answers whatever a subclass does not change."""

    def __init__(self, wrapped: LanguageModel) -> None:
        self.wrapped, self.model = wrapped, wrapped.model
        self.supports_tools, self.max_output_tokens = wrapped.supports_tools, wrapped.max_output_tokens

    def complete(self, request: Request) -> Response:
        """Ask the wrapped model."""
        return self.wrapped.complete(request)

    def count_tokens(self, request: Request) -> int:
        """Return the wrapped model's count."""
        return self.wrapped.count_tokens(request)

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the wrapped model's bound."""
        return self.wrapped.max_cost_usd(request, prompt_tokens)


def tool_results(results: dict[str, str], *, failed: tuple[str, ...] = ()) -> Message:
    """Return the user's turn that answers tool calls.

    Args:
        results: Call id -> text.
        failed: Ids whose text is an error message.
    """
    blocks = [{"type": "tool_result", "tool_use_id": key, "content": text} for key, text in results.items()]
    marked = (block | {"is_error": True} if block["tool_use_id"] in failed else block for block in blocks)
    return Message(role="user", content=tuple(marked))


def parse_output(output: type[BaseModel], text: str) -> BaseModel:
    """Parse `text` as an instance of `output`.

    Bounds and patterns are checked here, because providers only promise the schema's shape.

    Raises:
        LlmBadAnswerError: Names the first fault.
    """
    if len(text) > MAX_RESPONSE_CHARS:
        raise LlmBadAnswerError(
            f"the answer has {len(text)} characters; {MAX_RESPONSE_CHARS} are allowed", location=output.__name__
        )
    try:
        return output.model_validate_json(text)
    except ValidationError as error:
        raise LlmBadAnswerError(
            f"the answer is no {output.__name__}: {first_validation_error(error)}",
            location=output.__name__,
            answer=text,
        ) from None


def estimate_tokens(text: str) -> int:
    """Return an upper estimate of the tokens of a text: three bytes of UTF-8 per token."""
    return math.ceil(len(text.encode()) / 3)


def with_parsed_output(response: Response, request: Request) -> Response:
    """Return the response with `parsed` set from its text, if an output was requested and no tool was called.

    Raises:
        LlmBadAnswerError: The text is not such an output; with the usage and the cost of the answer.
    """
    if request.output is None or response.tool_calls:
        return response
    try:
        return response.model_copy(update={"parsed": parse_output(request.output, response.text)})
    except LlmError as error:
        error.usage, error.cost_usd = response.usage, response.cost_usd
        raise


def strict_schema(output: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema for strict structured outputs: closed objects, all properties required, no bounds."""
    import anthropic  # takes a second to load

    def close(node: Any) -> Any:
        if isinstance(node, list):
            return [close(item) for item in node]
        if not isinstance(node, dict):
            return node
        node = {name: close(value) for name, value in node.items()}
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            node["required"] = list(node["properties"])
        return node

    schema: dict[str, Any] = close(anthropic.transform_schema(output))
    return schema


def _text_of(content: str | tuple[dict[str, Any], ...]) -> str:
    return content if isinstance(content, str) else canonical_json(list(content))
