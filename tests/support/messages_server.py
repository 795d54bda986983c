"""A loopback server for the Messages API: validation, caching, counting, tools, streams, and every fault.

    with MessagesServer() as server:
        server.script(say("hello"), rate_limited(retry_after_ms=20), say_json({"a": 1}))
        ... AnthropicLM("claude-opus-5-5", base_url=server.url, api_key=server.key) ...
    server.requests, server.billed

Each POST to /v1/messages takes the next behaviour of the script; when it is empty, `server.answer(body)` decides.
Tokens are counted by a fixed rule (four characters per token), so that a test knows the exact sum.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = ("claude-fable-5-2", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")
FIELDS = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "metadata", "stop_sequences",
    "output_config", "thinking", "service_tier", "cache_control",
}  # fmt: skip
CACHE_LOOKBACK = 20  # blocks before a mark at which a cached prefix may end
ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}  # fmt: skip


@dataclass(frozen=True)
class Behaviour:
    """Behaviour of the server for one request."""

    content: tuple[dict[str, Any], ...] = ()
    stop_reason: str = "end_turn"
    stop_details: dict[str, Any] | None = None
    status: int = 200
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut_after: int | None = None  # bytes of the body, then the connection is reset
    raw: bytes | None = None  # body instead of a message
    overloaded_in_stream: bool = False
    extra_output_tokens: int = 0
    byte_delay_s: float = 0.0  # pause before every byte of the body
    replaced: tuple[tuple[bytes, bytes], ...] = ()  # (old, new) texts of the body


def say(text: str) -> Behaviour:
    return Behaviour(({"type": "text", "text": text},))


def say_json(value: Any) -> Behaviour:
    return say(json.dumps(value))


def use_tool(name: str, arguments: dict[str, Any], *, call_id: str = "toolu_1", text: str = "") -> Behaviour:
    preamble = ({"type": "text", "text": text},) if text else ()
    call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
    return Behaviour((*preamble, call), stop_reason="tool_use")


def refuse(explanation: str = "not this one", *, text: str = "I can't help with that.") -> Behaviour:
    details = {"type": "refusal", "category": None, "explanation": explanation}
    return replace(say(text), stop_reason="refusal", stop_details=details)


def truncate(text: str = '{"half": "of an ans') -> Behaviour:
    return replace(say(text), stop_reason="max_tokens")


def rate_limited(*, retry_after_ms: int | None = 10, retry_after_s: float | None = None) -> Behaviour:
    headers = {} if retry_after_ms is None else {"retry-after-ms": str(retry_after_ms)}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return Behaviour(status=429, message="Number of requests has exceeded your rate limit", headers=headers)


def fail(status: int, message: str = "it broke") -> Behaviour:
    return Behaviour(status=status, message=message, headers={"retry-after-ms": "10"})


def malformed(body: bytes = b'{"type": "message", "content": [') -> Behaviour:
    return Behaviour(raw=body)


def slow(behaviour: Behaviour, seconds: float) -> Behaviour:
    return replace(behaviour, delay_s=seconds)


def cut(behaviour: Behaviour, after: int = 40) -> Behaviour:
    return replace(behaviour, cut_after=after)


def trickled(behaviour: Behaviour, byte_delay_s: float) -> Behaviour:
    """Send the body one byte at a time."""
    return replace(behaviour, byte_delay_s=byte_delay_s)


def edited(behaviour: Behaviour, *replaced: tuple[str, str]) -> Behaviour:
    """Send the body with each old text replaced by the new one."""
    return replace(behaviour, replaced=tuple((old.encode(), new.encode()) for old, new in replaced))


def overloaded_midway(behaviour: Behaviour) -> Behaviour:
    return replace(behaviour, overloaded_in_stream=True)


def tokens(value: Any) -> int:
    """Count tokens: four characters of JSON per token, at least one; a cache mark counts nothing."""
    return max(1, len(json.dumps(unmarked(value), ensure_ascii=False, sort_keys=True)) // 4)


class ApiError(Exception):
    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class MessagesServer:
    """Context manager; `url` and `key` are what a client needs."""

    def __init__(self, *, key: str = "sk-ant-loopback-0123456789abcdef", models: tuple[str, ...] = MODELS) -> None:
        self.key, self.models = key, models
        self.requests: list[dict[str, Any]] = []  # bodies, in order of arrival
        self.counted: list[dict[str, Any]] = []  # bodies sent to count_tokens
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.billed = {"input": 0, "output": 0, "creation": 0, "read": 0}  # of answers delivered whole
        self.answer: Callable[[dict[str, Any]], Behaviour] = lambda body: say("ok")
        self.can_count = True
        self.count_fault: Behaviour | None = None  # of every request to count_tokens
        self._script: deque[Behaviour] = deque()
        self._cached: set[str] = set()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self._http.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """The class of the connections; servers of other APIs extend it."""
        return make_handler(self)

    def script(self, *behaviours: Behaviour) -> None:
        self._script.extend(behaviours)

    @property
    def left(self) -> int:
        """Return the behaviours that were not used yet."""
        return len(self._script)

    def __enter__(self) -> MessagesServer:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Behaviour:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            return self._script.popleft() if self._script else self.answer(body)

    def usage(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        """Return the four counters.

        The prompt up to each cache mark is written once. A later request reads the longest known prefix that ends at
        one of its marks or at most 20 blocks before it, and writes what follows up to the last mark.
        """
        parts, marks = prompt_parts(body), cache_marks(body)
        digests, known = prefix_digests(body["model"], parts), 0
        with self._lock:
            for mark in marks:
                ends = [end for end in range(max(1, mark - CACHE_LOOKBACK), mark + 1) if digests[end] in self._cached]
                known = max([known, *ends])
            self._cached |= {digests[mark] for mark in marks}
        last = marks[-1] if marks else 0
        usage: dict[str, Any] = {"input_tokens": sum(map(tokens, parts[last:])), "service_tier": "standard"}
        made = usage["cache_creation_input_tokens"] = sum(map(tokens, parts[known:last]))
        usage["cache_read_input_tokens"] = sum(map(tokens, parts[:known]))
        hour = made if '"ttl": "1h"' in json.dumps(parts[:last]) else 0
        usage["cache_creation"] = {"ephemeral_1h_input_tokens": hour, "ephemeral_5m_input_tokens": made - hour}
        usage["output_tokens"] = sum(map(tokens, behaviour.content)) + behaviour.extra_output_tokens
        return usage

    def bill(self, usage: dict[str, Any]) -> None:
        with self._lock:
            self.billed["input"] += usage["input_tokens"]
            self.billed["output"] += usage["output_tokens"]
            self.billed["creation"] += usage["cache_creation_input_tokens"]
            self.billed["read"] += usage["cache_read_input_tokens"]


def prompt_parts(body: dict[str, Any]) -> list[Any]:
    """Return what the model reads, in the order of the cache: tools, system, messages, output schema."""
    system = body.get("system", [])
    parts = [*body.get("tools", []), *([system] if isinstance(system, str) else system)]
    for message in body["messages"]:
        content = message["content"]
        parts += [content] if isinstance(content, str) else content
    if schema := body.get("output_config", {}).get("format"):
        parts.append(schema)
    return parts


def cache_marks(body: dict[str, Any]) -> list[int]:
    """Return how many parts of the prompt each cache mark covers."""
    parts = enumerate(prompt_parts(body), start=1)
    return [end for end, part in parts if isinstance(part, dict) and "cache_control" in part]


def unmarked(part: Any) -> Any:
    """Return a part of a prompt without its cache mark, which is no part of what is cached."""
    return {key: value for key, value in part.items() if key != "cache_control"} if isinstance(part, dict) else part


def prefix_digests(model: str, parts: list[Any]) -> list[str]:
    """Return the digest of each prefix of a prompt, by its number of parts."""
    digests = [hashlib.sha256(model.encode()).hexdigest()]
    for part in parts:
        text = digests[-1] + json.dumps(unmarked(part), sort_keys=True)
        digests.append(hashlib.sha256(text.encode()).hexdigest())
    return digests


def check(body: dict[str, Any], models: tuple[str, ...], *, counting: bool = False) -> None:
    """Reject what the API rejects."""
    required = {"model", "messages"} | (set() if counting else {"max_tokens"})
    for name in required - body.keys():
        raise ApiError(400, f"{name}: Field required")
    for name in body.keys() - FIELDS:
        raise ApiError(400, f"{name}: Extra inputs are not permitted")
    if body["model"] not in models:
        raise ApiError(404, f"model: {body['model']}")
    if not body["messages"]:
        raise ApiError(400, "messages: at least one message is required")
    if body["messages"][-1]["role"] == "assistant":
        raise ApiError(400, "This model does not support assistant message prefill.")
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        raise ApiError(400, "tool_choice: this model does not support forced tool use")
    marks = [part for part in prompt_parts(body) if isinstance(part, dict) and "cache_control" in part]
    if len(marks) > 4:
        raise ApiError(400, "A maximum of 4 blocks with cache_control may be provided.")
    _check_tools(body["messages"])
    if schema := body.get("output_config", {}).get("format"):
        _check_schema(schema.get("schema", {}), "output_config.format.schema")


def _check_tools(messages: list[dict[str, Any]]) -> None:
    """Check that exactly the tool_use blocks are answered in the next turn."""
    pending: set[str] = set()
    for index, message in enumerate(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = {block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"}
        if answered != pending:
            raise ApiError(
                400, f"messages.{index}: `tool_use` ids {sorted(pending)} were answered by {sorted(answered)}"
            )
        pending = {block["id"] for block in blocks if block.get("type") == "tool_use"}


def _check_schema(schema: Any, location: str) -> None:
    """Check that a schema is in the supported subset: closed objects, no numeric or length bounds."""
    if isinstance(schema, list):
        for item in schema:
            _check_schema(item, location)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        raise ApiError(400, f"{location}: For 'object' type, 'additionalProperties' must be explicitly set to false")
    for name in ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern", "maxItems"):
        if name in schema and not isinstance(schema[name], dict):
            raise ApiError(400, f"{location}: property '{name}' is not supported")
    for name, value in schema.items():
        _check_schema(list(value.values()) if name in ("properties", "$defs") else value, f"{location}.{name}")


def make_handler(server: MessagesServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))
            try:
                self._route(self._authorised(data))
            except ApiError as error:
                self._error(error)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _authorised(self, data: bytes) -> dict[str, Any]:
            key = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
            if key != server.key:
                raise ApiError(401, "invalid x-api-key")
            if not self.headers.get("anthropic-version"):
                raise ApiError(400, "anthropic-version: header is required")
            try:
                body = json.loads(data)
            except ValueError:
                raise ApiError(400, "The request body is not valid JSON") from None
            if not isinstance(body, dict):
                raise ApiError(400, "The request body is not an object")
            return body

        def _route(self, body: dict[str, Any]) -> None:
            path = self.path.partition("?")[0]
            if path == "/v1/messages/count_tokens" and server.can_count:
                check(body, server.models, counting=True)
                server.counted.append(body)
                if fault := server.count_fault:
                    time.sleep(fault.delay_s)
                    raise ApiError(fault.status, fault.message, fault.headers)
                return self._send(200, {"input_tokens": sum(map(tokens, prompt_parts(body)))})
            if path != "/v1/messages":
                raise ApiError(404, "Not found")
            behaviour = server.next(body, {name.lower(): value for name, value in self.headers.items()})
            check(body, server.models)
            time.sleep(behaviour.delay_s)
            if behaviour.raw is not None:
                return self._bytes(200, behaviour.raw, {})
            if behaviour.status != 200:
                raise ApiError(behaviour.status, behaviour.message, behaviour.headers)
            self._answer(body, behaviour)

        def _answer(self, body: dict[str, Any], behaviour: Behaviour) -> None:
            message = {
                "id": f"msg_{len(server.requests):06d}",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": list(behaviour.content),
                "stop_reason": behaviour.stop_reason,
                "stop_sequence": None,
                "stop_details": behaviour.stop_details,
                "usage": server.usage(body, behaviour),
            }
            data = (
                events(message, behaviour.overloaded_in_stream) if body.get("stream") else json.dumps(message).encode()
            )
            broken = behaviour.overloaded_in_stream and body.get("stream")  # an unstreamed answer arrives completely
            if behaviour.cut_after is None and not broken:
                server.bill(message["usage"])
            kind = "text/event-stream" if body.get("stream") else "application/json"
            for old, new in behaviour.replaced:
                assert old in data, (old, data)
                data = data.replace(old, new)
            self._bytes(200, data, {"content-type": kind}, behaviour.cut_after, behaviour.byte_delay_s)

        def _error(self, error: ApiError) -> None:
            kind = ERRORS.get(error.status, "api_error")
            body = {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": "req_loopback"}
            self._send(error.status, body, error.headers)

        def _send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
            self._bytes(status, json.dumps(value).encode(), headers or {})

        def _bytes(
            self,
            status: int,
            data: bytes,
            headers: dict[str, str],
            cut_after: int | None = None,
            byte_delay_s: float = 0.0,
        ) -> None:
            server.statuses.append(status)
            self.send_response(status)
            headers = {"content-type": "application/json", "request-id": "req_loopback", **headers}
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            for at in range(len(data) if byte_delay_s else 0):
                time.sleep(byte_delay_s)
                self.wfile.write(data[at : at + 1])
            if not byte_delay_s:
                self.wfile.write(data if cut_after is None else data[:cut_after])
            self.wfile.flush()
            if cut_after is not None:
                self.close_connection = True

    return Handler


def events(message: dict[str, Any], overloaded: bool) -> bytes:
    """Return the message as server-sent events, with text in small pieces."""
    usage = message["usage"]
    start = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_details": None,
        "usage": {**usage, "output_tokens": 1},
    }
    out = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        text = block["type"] == "text"
        empty = {**block, "text": ""} if text else {**block, "input": {}}
        content = block["text"] if text else json.dumps(block["input"])
        out.append({"type": "content_block_start", "index": index, "content_block": empty})
        size = max(7, len(content) // 500)
        for at in range(0, len(content), size):
            piece = content[at : at + size]
            delta = (
                {"type": "text_delta", "text": piece} if text else {"type": "input_json_delta", "partial_json": piece}
            )
            out.append({"type": "content_block_delta", "index": index, "delta": delta})
        if overloaded:
            out.append({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
            break
        out.append({"type": "content_block_stop", "index": index})
    if not overloaded:
        delta = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        out.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output_tokens"]}})
        out.append({"type": "message_stop"})
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in out)
