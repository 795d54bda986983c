"""Cassettes: recorded with a server, replayed without one, free of secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM
from autoqec.extensions.language_models.clients.base import Request, Response, ToolCall
from autoqec.extensions.language_models.clients.cassette import CassetteFile, RecordingLM, ReplayLM
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client
from autoqec.extensions.language_models.clients.errors import (
    BudgetExceededError,
    CassetteMissError,
    LlmBadRequestError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
)
from autoqec.extensions.language_models.clients.ledger import Ledger, MeteredLM
from autoqec.extensions.language_models.clients.scripted import ScriptedLM, ScriptedResponse
from autoqec.store import jsonl
from tests.support.llm_requests import request
from tests.support.messages_server import Behaviour, MessagesServer, fail, refuse, say, say_json, truncate, use_tool


def recording(path: Path, *script: ScriptedResponse) -> RecordingLM:
    return RecordingLM(ScriptedLM(script, name="m"), CassetteFile(path, "record"))


def replay(path: Path) -> ReplayLM:
    return ReplayLM(CassetteFile(path, "replay"), "scripted:m")


class Sum(BaseModel):
    value: int


CONFIG = LMConfig(model="claude-opus-5-5")


def outcome(lm: object, item: Request) -> object:
    try:
        response: Response = lm.complete(item)  # type: ignore[attr-defined]
    except LlmError as error:
        return type(error), str(error), error.usage
    return response.dump(), response.parsed


REQUESTS = (
    request("a", system=("stable", "moving")),
    request("sum", output=Sum),
    request("sum", output=Sum),
    request("no", output=Sum),
    request("long"),
    request("tool"),
    request("bad", output=Sum),
)
SCRIPT = (
    say("hello Δ"),
    say_json({"value": 1}),
    fail(500),
    say_json({"value": 2}),
    refuse(),
    truncate(),
    use_tool("t", {}),
    say("x"),
)


def test_replay_needs_no_key_and_gives_the_same_answers(
    server: MessagesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cassette.jsonl"
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    server.script(*SCRIPT)
    recorder = get_lm_client(CONFIG, cassette_file=CassetteFile(path, "record"))
    recorded = [outcome(recorder, item) for item in REQUESTS]
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    player = get_lm_client(CONFIG, cassette_file=CassetteFile(path, "replay"))
    assert [outcome(player, item) for item in REQUESTS] == recorded
    assert recorded[3][0] is LlmRefusalError and recorded[4][0] is LlmTruncatedError  # type: ignore[index]
    assert len(server.requests) == len(SCRIPT)
    assert all(server.key not in file.read_text() for file in tmp_path.rglob("*") if file.is_file())


def test_order_of_different_calls_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = recording(path, "1", "2", "3")
    for text in ("a", "b", "a"):
        recorder.complete(request(text))
    player = replay(path)
    assert [player.complete(request(text)).text for text in ("a", "a", "b")] == ["1", "3", "2"]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (request("other"), "line 1, the next one of this role, differs in messages"),
        (request("other", system=("s",), aside="8 cores"), "differs in system, messages$"),
        (request("a", context=("r1",)), "differs in context"),
        (request("a", output=Sum), "differs in the form of the answer"),
        (request("a", effort="low"), "differs in effort"),
        (request("a", max_tokens=9000), "differs in max_tokens"),
        (request("a", role="coder"), "all recorded calls of role coder were replayed"),
    ],
)
def test_unrecorded_request_is_an_error_that_names_the_difference(
    tmp_path: Path, changed: Request, difference: str
) -> None:
    path = tmp_path / "tape.jsonl"
    recording(path, "1").complete(request("a", aside="2 cores"))
    player = replay(path)
    with pytest.raises(CassetteMissError, match=f"role {changed.role}") as caught:
        player.complete(changed)
    assert re.search(difference, caught.value.message) and caught.value.location == str(path)
    assert "run.json" in str(caught.value.hint)
    assert player.complete(request("a")).text == "1"
    with pytest.raises(CassetteMissError, match="2. time"):
        player.complete(request("a"))
    with pytest.raises(CassetteMissError, match=f"all recorded calls of role {changed.role}"):
        player.complete(changed)


def test_difference_is_that_from_the_first_call_that_was_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = recording(path, "1", "2", "3")
    for item in (request("a"), request("a"), request("b", system=("s",))):
        recorder.complete(item)
    player = replay(path)
    player.complete(request("a"))
    with pytest.raises(CassetteMissError, match="line 2, .* differs in messages"):
        player.complete(request("x"))
    player.complete(request("a"))
    with pytest.raises(CassetteMissError, match="line 3, .* differs in messages"):
        player.complete(request("x", system=("s",)))


def test_token_count_of_a_recording_without_a_budget_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recording(path, "1").complete(request("a"))
    player = MeteredLM(replay(path), Ledger(max_tokens=90_000))
    with pytest.raises(CassetteMissError, match="recorded without a budget"):
        player.complete(request("a"))


@pytest.mark.parametrize(
    "change",
    [
        {"key": None},
        {"key": ["k"]},
        {"kind": "other"},
        {"kind": "count"},
        {"kind": "count", "tokens": "many"},
        {"reply": None},
        {"reply": "hello"},
        {"error": {"kind": "LlmRefusalError"}},
        {"error": "LlmRefusalError"},
    ],
)
def test_line_that_is_no_call_is_reported_with_its_number(tmp_path: Path, change: dict[str, object]) -> None:
    path, odd = tmp_path / "tape.jsonl", tmp_path / "odd.jsonl"
    recording(path, "1").complete(request("a"))
    (row,) = jsonl.read(path)
    jsonl.append_all(odd, [row, row | change])
    with pytest.raises(ContractError, match="not a recorded call") as caught:
        CassetteFile(odd, "replay")
    assert caught.value.location == f"{odd}:2" and caught.value.hint


@pytest.mark.parametrize("max_tokens", [8192, 64_000])
@pytest.mark.parametrize(
    "answer",
    [
        say("half of a pair: \ud83d"),
        say_json({"value": "\ud83d"}),
        use_tool("t", {"x": ["\ud83d"]}),
        refuse("\ud83d"),
        fail(400, "\ud83d"),
        fail(500, "\ud83d"),
    ],
    ids=["text", "structured", "tool", "refusal", "rejected", "outage"],
)
def test_answer_that_is_no_text_is_a_recorded_error(
    server: MessagesServer, tmp_path: Path, answer: Behaviour, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON may name half of a surrogate pair, which no file can hold."""
    path = tmp_path / "tape.jsonl"
    server.answer = lambda body: answer
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    model = AnthropicLM("claude-opus-5-5", max_retries=0)
    recorder = RecordingLM(model, CassetteFile(path, "record"))
    asked = request("a", output=Sum, max_tokens=max_tokens)
    with pytest.raises(LlmError) as caught:
        recorder.complete(asked)
    str(caught.value).encode(), (caught.value.answer or "").encode()
    if not isinstance(caught.value, LlmBadRequestError):  # which is not recorded
        assert outcome(ReplayLM(CassetteFile(path, "replay"), model.model), asked) == outcome(recorder, asked)


def test_machine_description_is_not_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    first, second = request("a", aside="2 cores"), request("a", aside="64 cores")
    recording(path, "1").complete(first)
    assert "2 cores" in path.read_text(encoding="utf-8"), "what was read is on the tape"
    assert replay(path).complete(second).text == "1"


def test_request_to_another_model_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recording(path, "1").complete(request("a"))
    with pytest.raises(CassetteMissError):
        ReplayLM(CassetteFile(path, "replay"), "n").complete(request("a"))


def test_cassette_contains_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-shaped-like-a-key-7781")
    monkeypatch.setenv("OPENAI_API_KEY", 'quo"ted-\\key-9912')
    path = tmp_path / "tape.jsonl"
    leaky = ToolCall(id="1", name="t", input={"env": "sk-ant-REDACTED-shape-0123456789"})
    recorder = recording(path, "it is not-shaped-like-a-key-7781", leaky)
    recorder.complete(request('quo"ted-\\key-9912', system=("not-shaped-like-a-key-7781",)))
    recorder.complete(request("task-force-and-risk-assessment-of-it"))
    text = path.read_text()
    for secret in ("7781", "9912", "sk-ant"):
        assert secret not in text
    assert "task-force-and-risk-assessment-of-it" in text
    assert len(jsonl.read(path)) == 2


def test_budget_ends_replay_at_the_same_call(
    server: MessagesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tape.jsonl"
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)

    def calls(cassette_file: CassetteFile) -> tuple[int, dict[str, object]]:
        ledger = Ledger(max_tokens=9_000)
        lm = get_lm_client(CONFIG, cassette_file=cassette_file, ledger=ledger)
        done = 0
        with pytest.raises(BudgetExceededError):
            for number in range(50):
                lm.complete(request("x" * 400 + str(number)))
                done += 1
        return done, ledger.totals.to_json()

    recorded = calls(CassetteFile(path, "record"))
    assert recorded[0] > 1
    count = len(server.requests)
    assert calls(CassetteFile(path, "replay")) == recorded
    assert len(server.requests) == count


def test_missing_cassette_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="record one"):
        CassetteFile(tmp_path / "gone.jsonl", "replay")
