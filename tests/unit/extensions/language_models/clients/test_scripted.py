from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import BaseModel

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients import scripted
from autoqec.extensions.language_models.clients.base import LanguageModel, Request, ToolCall
from autoqec.extensions.language_models.clients.errors import LlmBadAnswerError, LlmRefusalError
from autoqec.extensions.language_models.clients.scripted import ScriptedLM, from_name
from tests.support.llm_requests import request


class Sum(BaseModel):
    value: int


def test_list_gives_one_answer_per_call() -> None:
    lm = ScriptedLM(["a", {"value": 3}, ToolCall(id="1", name="look", input={}), LlmRefusalError("no")])
    assert isinstance(lm, LanguageModel)
    assert lm.complete(request("x")).text == "a"
    assert lm.complete(request("x", output=Sum)).parsed == Sum(value=3)
    assert lm.complete(request("x", output=Sum)).tool_calls[0].name == "look"
    with pytest.raises(LlmRefusalError):
        lm.complete(request("x"))
    with pytest.raises(LlmBadAnswerError, match="no answer after 4"):
        lm.complete(request("x"))
    assert len(lm.requests) == 5


def test_threads_are_served_concurrently() -> None:
    together = threading.Barrier(8, timeout=30)

    def script(llm_request: Request) -> str:
        together.wait()  # the barrier breaks unless eight calls are concurrent
        return "ok"

    lm = ScriptedLM(script)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: lm.call("", str(number)), range(16))) == ["ok"] * 16


def test_wrong_shape_is_a_bad_answer_with_usage() -> None:
    with pytest.raises(LlmBadAnswerError) as caught:
        ScriptedLM(["prose"]).complete(request("x", output=Sum))
    assert caught.value.usage is not None and caught.value.usage.total > 0


def test_equal_calls_have_equal_cost() -> None:
    first, second = (ScriptedLM(lambda _: "ok").complete(request("Δ" * 30)) for _ in range(2))
    assert first == second and first.cost_usd == 0.0


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.jsonl"
    path.write_text('{"when": "2 ?\\\\+ ?2", "say": "4"}\n{"when": "shape", "say": {"value": 5}}\n{"say": "dunno"}\n')
    lm = from_name(f"scripted:{path}")
    assert [lm.call("", text) for text in ("what is 2+2?", "2 + 2", "else")] == ["4", "4", "dunno"]
    assert lm.complete(request("shape", output=Sum)).parsed == Sum(value=5)


def test_echo_and_registered_names() -> None:
    assert from_name("scripted:echo").call("", "hello") == "hello"
    scripted.register("shout", lambda llm_request: scripted.last_message_text(llm_request).upper())
    assert from_name("scripted:shout").call("", "hello") == "HELLO"


@pytest.mark.parametrize("rules", ['{"when": "x"}\n', '{"when": "(", "say": "x"}\n'])
def test_invalid_rule_names_its_line(tmp_path: Path, rules: str) -> None:
    path = tmp_path / "rules.jsonl"
    path.write_text(rules)
    with pytest.raises(UsageError, match=r"rules\.jsonl:1"):
        from_name(f"scripted:{path}")


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(UsageError, match="scripted:echo"):
        from_name("scripted:nonesuch")
    with pytest.raises(UsageError, match=r"gone\.jsonl"):
        from_name("scripted:gone.jsonl")
