"""Every call is recorded with its exact tokens; the budget stops before the call that would exceed it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request, Response
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client
from autoqec.extensions.language_models.clients.errors import (
    BudgetExceededError,
    LlmBadAnswerError,
    LlmRefusalError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.ledger import CostBound, Ledger, MeteredLM
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.store import jsonl
from tests.support.messages_server import (
    MessagesServer,
    cut,
    fail,
    malformed,
    rate_limited,
    refuse,
    say,
    truncate,
)

MODEL = "claude-opus-5-5"


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer(key="none") as running:
        yield running


def request(text: str = "go", role: str = "ideator") -> Request:
    return Request(role=role, messages=(Message(role="user", content=text),))


def served(server: MessagesServer, ledger: Ledger, model: str = MODEL) -> LanguageModel:
    return get_lm_client(LMConfig(model=model, base_url=server.url, backend="anthropic"), ledger=ledger)


def test_spend_is_exact_for_every_api_error(server: MessagesServer, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    lm = served(server, ledger)
    server.script(
        say("one"), rate_limited(), fail(500), say("two"), refuse(), fail(529), truncate(), malformed(), say("3")
    )
    outcomes = []
    for text in "abcde":
        try:
            lm.complete(request(text))
            outcomes.append("ok")
        except (LlmRefusalError, LlmBadAnswerError, LlmUnavailableError) as error:
            outcomes.append(type(error).__name__)
        except Exception as error:
            outcomes.append(type(error).__name__)
    assert outcomes == ["ok", "ok", "LlmRefusalError", "LlmTruncatedError", "ok"]
    usage = ledger.totals.usage
    assert [usage.input_tokens, usage.output_tokens] == [server.billed["input"], server.billed["output"]]
    assert usage.total == sum(server.billed.values())
    assert (ledger.totals.calls, ledger.totals.failed) == (5, 2)
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.totals.to_json() == ledger.totals.to_json()
    assert again.unsettled == ledger.unsettled


def test_roles_and_attempts_are_recorded_separately(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    lm = MeteredLM(ScriptedLM(lambda asked: "ok"), ledger)
    with ledger.round("attempt-1"):
        lm.complete(request(role="ideator"))
        lm.complete(request(role="coder"))
    with ledger.round("attempt-2"):
        lm.complete(request(role="ideator"))
    assert {role: totals.calls for role, totals in ledger.by_role.items()} == {"ideator": 2, "coder": 1}
    assert {key: totals.calls for key, totals in Ledger(ledger.path).by_attempt.items()} == {
        "attempt-1": 2,
        "attempt-2": 1,
    }


def test_token_budget_stops_before_the_call(server: MessagesServer) -> None:
    prompt = "x" * 400
    ledger = Ledger(max_tokens=2 * 8192)
    lm = served(server, ledger)
    server.script(say("short"))
    lm.complete(request(prompt))
    with pytest.raises(BudgetExceededError, match="budget is 16384"):
        lm.complete(request("x" * 40_000))
    assert len(server.requests) == 1 and len(server.counted) == 2
    assert ledger.totals.calls == 1 and ledger.unsettled == CostBound(0, 0.0)


def test_dollar_budget_stops_before_the_call(server: MessagesServer) -> None:
    # 8192 output tokens at $20 per million are $0.16384: two calls cannot both be reserved within $0.2.
    ledger = Ledger(max_usd=0.2)
    lm = served(server, ledger)
    lm.complete(request())
    lm.complete(request())
    assert ledger.totals.cost_usd is not None and 0 < ledger.totals.cost_usd < 0.01
    strict = served(server, Ledger(max_usd=0.16))
    with pytest.raises(BudgetExceededError, match=r"\$0\.16"):
        strict.complete(request())
    assert len(server.requests) == 2


def test_budget_in_dollars_needs_a_price() -> None:
    with MessagesServer(key="none", models=("qwen3",)) as server:
        lm = served(server, Ledger(max_usd=100.0), "qwen3")
        with pytest.raises(BudgetExceededError, match="no price"):
            lm.complete(request())
        assert server.requests == []


def test_unknown_cost_is_null_never_zero() -> None:
    with MessagesServer(key="none", models=("qwen3",)) as server:
        ledger = Ledger()
        served(server, ledger, "qwen3").complete(request())
    assert ledger.totals.cost_usd is None and ledger.totals.unknown_cost_calls == 1
    assert ledger.totals.usage.total > 0


def test_lost_answers_count_against_the_budget_and_not_as_spent(server: MessagesServer) -> None:
    ledger = Ledger(max_tokens=100_000)
    server.script(cut(say("x" * 400)), say("there"))
    served(server, ledger).complete(request())
    assert ledger.totals.usage.total == sum(server.billed.values())
    assert ledger.unsettled.tokens > 8192


def test_unfinished_call_counts_with_its_upper_bound(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def dies(asked: Request) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MeteredLM(ScriptedLM(dies), Ledger(path)).complete(request())
    again = Ledger(path, max_tokens=8192 * 2)
    assert again.totals.calls == 0 and again.unsettled.tokens > 8192
    with pytest.raises(BudgetExceededError):
        MeteredLM(ScriptedLM(lambda asked: "ok"), again).complete(request())


def test_concurrent_threads_cannot_exceed_the_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", max_tokens=50_000)
    lm = MeteredLM(ScriptedLM(lambda asked: "ok"), ledger)

    def call_once(number: int) -> Response | None:
        try:
            return lm.complete(request(str(number)))
        except BudgetExceededError:
            return None

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call_once, range(64)))
    lines = jsonl.read(tmp_path / "ledger.jsonl")
    running, most, bounds = 0, 0, {}
    for line in lines:
        if line["kind"] == "asked":
            bounds[line["id"]] = line["worst_tokens"]
            running += line["worst_tokens"]
        else:
            running += sum(line["usage"].values()) - bounds[line["id"]]
        most = max(most, running)
    assert most <= 50_000
    assert ledger.totals.calls >= 5


def test_call_goes_through_the_ledger() -> None:
    ledger = Ledger()
    assert MeteredLM(ScriptedLM(["fine"]), ledger).call("be brief", "hello") == "fine"
    assert ledger.totals.calls == 1
