from __future__ import annotations

import subprocess
import sys

import pytest

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, require_price, role_config
from autoqec.extensions.language_models.clients.prices import price_list
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from tests.support.messages_server import MessagesServer


def test_defaults_of_the_config() -> None:
    config = LMConfig(model="claude-opus-5-5")
    assert (config.temperature, config.max_output_tokens) == (0.2, 2048)


def test_environment_takes_precedence_over_config_per_role() -> None:
    config = LMConfig(model="claude-sonnet-5-5")
    environ = {"AUTOQEC_CODER_MODEL": "claude-fable-5-2", "AUTOQEC_ANALYST_BACKEND": "claude"}
    assert role_config("ideator", config, environ) == config
    assert role_config("coder", config, environ).resolved_model() == "claude-fable-5-2"
    analyst = role_config("analyst", config, environ)
    assert (analyst.resolved_backend(), analyst.resolved_model()) == ("claude", "claude-sonnet-5-5")
    alone = role_config("analyst", None, {"AUTOQEC_ANALYST_BACKEND": "codex"})
    assert (alone.resolved_backend(), alone.model, alone.resolved_model()) == ("codex", None, "codex")


def test_local_endpoint_needs_no_key() -> None:
    with MessagesServer(key="none", models=("qwen3",)) as server:
        config = role_config("coder", LMConfig(model="qwen3"), {"AUTOQEC_CODER_BASE_URL": server.url})
        assert get_lm_client(config).call("", "go") == "ok"
    with pytest.raises(UsageError, match="AUTOQEC_CODER"):
        role_config("coder", None, {"AUTOQEC_CODER_BASE_URL": "localhost:11434"})


def test_default_model_is_that_of_the_price_list() -> None:
    assert role_config("ideator", None, {}).resolved_model() == price_list().default_model
    assert price_list().default_model in price_list().models


def test_unknown_backend_names_the_variable() -> None:
    with pytest.raises(UsageError, match="AUTOQEC_IDEATOR"):
        role_config("ideator", None, {"AUTOQEC_IDEATOR_BACKEND": "telepathy"})


@pytest.mark.parametrize("model", ["mistral-large", "geminix", "gptx", "ox", "llama"])
def test_unknown_names_list_the_known(model: str) -> None:
    with pytest.raises(UsageError, match=r"claude-\*.*gpt-\*.*gemini-\*.*base_url.*scripted"):
        get_lm_client(LMConfig(model=model))


def test_model_names_select_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "dummy-key")
    assert isinstance(get_lm_client(LMConfig(model="scripted:echo")), ScriptedLM)
    assert isinstance(get_lm_client(LMConfig(model="claude-opus-5-5")), AnthropicLM)
    assert isinstance(get_lm_client(LMConfig(model="qwen3", base_url="http://127.0.0.1:9")), AnthropicLM)


@pytest.mark.parametrize("option", ["temperature", "thinking_budget"])
def test_options_that_a_backend_does_not_accept_are_dropped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "dummy-key")
    get_lm_client(LMConfig.model_validate({"model": "claude-opus-5-5", option: 1}))
    assert [option in record.message for record in caplog.records] == [True]
    get_lm_client(LMConfig(model="scripted:echo", temperature=0.2))
    assert len(caplog.records) == 1


def test_import_loads_no_heavy_library() -> None:
    code = (
        "import sys; from autoqec.extensions.language_models.clients import cassette, config, scripted;"
        "print(sorted({'anthropic', 'torch', 'stim', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_budget_in_dollars_needs_a_price() -> None:
    require_price(LMConfig(model="claude-opus-5-5"))
    require_price(LMConfig(model="scripted:expert"))
    require_price(LMConfig(backend="claude", max_call_usd=1.0))
    for config in (
        LMConfig(model="claude-of-next-year"),
        LMConfig(backend="codex"),
        LMConfig(model="x", base_url="http://x"),
    ):
        with pytest.raises(UsageError, match="no price is known") as error:
            require_price(config)
        assert error.value.hint is not None and "tokens=" in error.value.hint and "claude-opus-5-5" in error.value.hint


def test_time_limit_of_a_role_is_set_by_environment() -> None:
    assert role_config("coder", environ={"AUTOQEC_CODER_TIMEOUT_S": "42.5"}).timeout_s == 42.5
    with pytest.raises(UsageError, match="timeout_s"):
        role_config("coder", environ={"AUTOQEC_CODER_TIMEOUT_S": "soon"})
