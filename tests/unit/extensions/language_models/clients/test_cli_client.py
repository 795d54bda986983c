"""Clients of `claude` and `codex`, with fake executables on PATH that accept the same flags."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import pytest
from pydantic import BaseModel, Field

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.base import LanguageModel, Tool
from autoqec.extensions.language_models.clients.cli_client import CliLM
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, role_config
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.ledger import Ledger, MeteredLM
from autoqec.store.model_calls import Usage
from tests.support.llm_requests import request

STANDINS = Path(__file__).resolve().parents[4] / "support" / "standins"


class Part(BaseModel):
    name: str = "x"


class Guess(BaseModel):
    what: str
    score: int = Field(default=1, ge=0, le=10)
    part: Part | None = None


class Bin(Protocol):
    def __call__(self, program: str, *behaviours: dict[str, Any]) -> Path: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bin:
    """Put fake executables on PATH, each with its script; return the path of `seen.jsonl`."""

    def put(program: str, *behaviours: dict[str, Any]) -> Path:
        home = tmp_path / program
        home.mkdir()
        shutil.copy(STANDINS / program, home / program)
        (home / program).chmod(0o755)
        (home / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in behaviours))
        monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
        return home / "seen.jsonl"

    return put


def seen(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_claude_answers_with_usage_and_cost(install: Bin) -> None:
    notes = install("claude", {"text": "hello Δ"})
    lm = CliLM("claude", "claude-opus-5-5", effort="high", max_call_usd=0.5)
    assert isinstance(lm, LanguageModel)
    response = lm.complete(request("say Δ", system=("stable", "moving")))
    assert (response.text, response.model, response.cost_usd) == ("hello Δ", "claude-opus-5-5", 0.0123)
    assert response.usage == Usage(
        input_tokens=11, output_tokens=7, cache_creation_input_tokens=5, cache_read_input_tokens=3
    )
    (call,) = seen(notes)
    assert (call["prompt"], call["system"], call["cwd"]) == ("say Δ", "stable\n\nmoving", [])
    argv = call["argv"]
    assert argv[argv.index("--tools") + 1] == "" and argv[argv.index("--max-budget-usd") + 1] == "0.5"
    assert argv[argv.index("--effort") + 1] == "high"


def test_claude_structured_answer_is_parsed(install: Bin) -> None:
    install("claude", {"structured": {"what": "gnn"}}, {"text": '{"what": "mlp"}'}, {"structured": {"score": 3}})
    lm = CliLM("claude")
    assert lm.complete(request(output=Guess)).parsed == Guess(what="gnn")
    assert lm.complete(request(output=Guess)).parsed == Guess(what="mlp")
    with pytest.raises(LlmBadAnswerError, match="what") as caught:
        lm.complete(request(output=Guess))
    assert caught.value.cost_usd == 0.0123


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ({"text": "no", "stop_reason": "refusal"}, LlmRefusalError),
        ({"text": "half", "stop_reason": "max_tokens"}, LlmTruncatedError),
        ({"subtype": "error_max_budget_usd", "is_error": True}, LlmTruncatedError),
        ({"subtype": "error_max_structured_output_retries", "is_error": True}, LlmBadAnswerError),
        ({"text": "x" * 2_000_001}, LlmBadAnswerError),
    ],
)
def test_claude_errors_have_a_type_and_usage(install: Bin, behaviour: dict[str, Any], kind: type[Exception]) -> None:
    install("claude", behaviour)
    with pytest.raises(kind) as caught:
        CliLM("claude").complete(request())
    assert caught.value.usage.total == 26  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ({"text": "Invalid API key · Please run /login", "is_error": True}, LlmAuthError),
        ({"text": "API Error: 529 overloaded", "is_error": True}, LlmUnavailableError),
        ({"text": "API Error: 529 overloaded (req_4011)", "is_error": True}, LlmUnavailableError),
        ({"raw": "Segmentation fault\n", "exit": 139}, LlmUnavailableError),
        ({"raw": "", "stderr": "Not logged in", "exit": 1}, LlmAuthError),
        ({"raw": '{"type": "result", '}, LlmUnavailableError),
    ],
)
def test_claude_failures_are_distinguished(install: Bin, behaviour: dict[str, Any], kind: type[Exception]) -> None:
    install("claude", behaviour)
    with pytest.raises(kind):
        CliLM("claude").complete(request())


def test_failed_call_of_claude_keeps_what_it_cost(install: Bin) -> None:
    install("claude", {"text": "API Error: 529 overloaded", "is_error": True})
    ledger = Ledger(max_usd=1.0)
    with pytest.raises(LlmUnavailableError):
        MeteredLM(CliLM("claude", "claude-opus-5-5", max_call_usd=0.5), ledger).complete(request())
    assert (ledger.totals.failed, ledger.totals.cost_usd, ledger.totals.usage.total) == (1, 0.0123, 26)


def test_answer_that_is_no_text_can_be_recorded(install: Bin) -> None:
    install("claude", {"text": "half \ud83d"}, {"structured": {"what": "half \ud83d"}})
    assert CliLM("claude").complete(request()).text == "half ?"
    assert CliLM("claude").complete(request(output=Guess)).parsed == Guess(what="half ?")


def test_codex_answers_with_usage(install: Bin) -> None:
    notes = install("codex", {"text": '{"what": "gnn", "score": 2, "part": null}'})
    response = CliLM("codex", "gpt-6", effort="max").complete(request(system=("be brief",), output=Guess))
    assert response.parsed == Guess(what="gnn", score=2)
    assert response.usage == Usage(input_tokens=60, output_tokens=9, cache_read_input_tokens=40)
    assert response.cost_usd is None  # unknown price: null, never 0
    (call,) = seen(notes)
    assert call["prompt"] == "be brief\n\ngo" and call["cwd"] == []
    assert "read-only" in call["argv"] and 'model_reasoning_effort="xhigh"' in call["argv"]
    assert call["schema"]["required"] == ["what", "score", "part"]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ({"fail": "You've hit your usage limit"}, LlmUnavailableError),
        ({"fail": "401 Unauthorized"}, LlmAuthError),
        ({"raw": "thread panicked\n", "exit": 101}, LlmUnavailableError),
        ({"text": "prose"}, LlmBadAnswerError),
    ],
)
def test_codex_failures_are_distinguished(install: Bin, behaviour: dict[str, Any], kind: type[Exception]) -> None:
    install("codex", behaviour)
    with pytest.raises(kind):
        CliLM("codex").complete(request(output=Guess))


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_program_receives_only_its_own_key(install: Bin, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-anthropic-000")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-openai-000000000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other-secret-000")
    monkeypatch.setenv("GIT_DIR", "/nonesuch")
    notes = install(program, {"text": "ok"})
    CliLM(program).complete(request())  # type: ignore[arg-type]
    env = seen(notes)[0]["env"]
    own, other = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")[:: 1 if program == "claude" else -1]
    assert own in env and other not in env
    assert "AWS_SECRET_ACCESS_KEY" not in env and "GIT_DIR" not in env
    argv = json.dumps(seen(notes)[0]["argv"])
    assert "sk-" not in argv


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_hanging_program_is_killed(install: Bin, program: str) -> None:
    install(program, {"text": "late", "sleep": 30})
    with pytest.raises(LlmUnavailableError, match="wall clock") as caught:
        CliLM(program, timeout_s=0.5).complete(request())  # type: ignore[arg-type]
    assert caught.value.lost_attempts == 1


def test_long_prompt_is_passed_completely(install: Bin) -> None:
    notes = install("claude", {"text": "ok"})
    CliLM("claude").complete(request("x" * 1_000_000, system=("y" * 300_000,)))
    (call,) = seen(notes)
    assert (len(call["prompt"]), len(call["system"])) == (1_000_000, 300_000)


def test_program_that_never_reads_does_not_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "claude").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "claude").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(LlmUnavailableError, match="exit 3"):
        CliLM("claude").complete(request("x" * 1_000_000))


def test_tools_are_refused(install: Bin) -> None:
    install("claude")
    tool = Tool(name="t", description="", input_schema={"type": "object"})
    lm = CliLM("claude")
    assert not lm.supports_tools
    with pytest.raises(LlmBadRequestError, match="does not accept tools"):
        lm.complete(request(tools=(tool,)))


def test_missing_program_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="not on PATH"):
        get_lm_client(LMConfig(backend="codex"))


@pytest.mark.parametrize(("program", "other"), [("claude", "anthropic"), ("codex", "openai")])
def test_variable_of_a_key_is_refused(install: Bin, program: str, other: str) -> None:
    install(program)
    environ = {"AUTOQEC_CODER_BACKEND": program, "AUTOQEC_CODER_API_KEY_ENV": "GATEWAY_KEY"}
    with pytest.raises(UsageError, match="GATEWAY_KEY") as caught:
        get_lm_client(role_config("coder", None, environ))
    assert other in str(caught.value.hint)


@pytest.mark.parametrize(("program", "model"), [("claude", "claude-haiku-5-5"), ("codex", "gpt-5.2-codex")])
def test_model_option_is_kept_with_a_client_of_the_environment(install: Bin, program: str, model: str) -> None:
    behaviour = {"text": "ok"}
    notes = install(program, behaviour)
    config = role_config("coder", LMConfig(model=model), {"AUTOQEC_CODER_BACKEND": program})
    assert (config.resolved_backend(), config.resolved_model()) == (program, model)
    assert get_lm_client(config).call("", "go") == "ok"
    argv = seen(notes)[0]["argv"]
    assert argv[argv.index("--model") + 1] == model


@pytest.mark.parametrize(
    ("program", "model"), [("codex", "claude-haiku-5-5"), ("claude", "gpt-5.2"), ("codex", "scripted:echo")]
)
def test_client_without_the_model_is_rejected(program: str, model: str) -> None:
    config = LMConfig(model=model)
    with pytest.raises(UsageError, match=f"`{program}` does not have the model '{model}'"):
        role_config("coder", config, {"AUTOQEC_CODER_BACKEND": program})
    both = {"AUTOQEC_CODER_BACKEND": "codex", "AUTOQEC_CODER_MODEL": "gpt-5.2-codex"}
    assert role_config("coder", config, both).resolved_model() == "gpt-5.2-codex"


@pytest.mark.parametrize("cost", ["-100", "NaN", "1e999", '"much"', "true", "[1]"])
def test_impossible_cost_is_ignored(install: Bin, cost: str) -> None:
    line = f'{{"type": "result", "result": "x", "total_cost_usd": {cost}, "usage": {{}}}}'
    install("claude", {"raw": line}, {"raw": line})
    assert CliLM("claude").complete(request()).cost_usd is None
    assert CliLM("claude", "claude-opus-5-5").complete(request()).cost_usd == 0.0


@pytest.mark.parametrize("models", ["[1]", "3", '"x"', "{}"])
def test_malformed_model_list_keeps_the_requested_name(install: Bin, models: str) -> None:
    install("claude", {"raw": f'{{"type": "result", "result": "x", "modelUsage": {models}}}'})
    assert CliLM("claude").complete(request()).model == "claude"
