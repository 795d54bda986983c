"""Addresses of language models that jobs of a detached run reach."""

from __future__ import annotations

import socket

import pytest

from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import UsageError
from autoqec.extensions.language_models import model_access
from autoqec.extensions.language_models.plugin import ModelOptions, ModelSettings, plugin


def asked(backend: str = "openai", base_url: str | None = None, *, cassette: bool = False) -> ModelOptions:
    model = ModelSettings(backend=backend, model="a-model", base_url=base_url)
    return ModelOptions(models={"coder": model}, cassette="tape.jsonl" if cassette else None)


@pytest.fixture(autouse=True)
def without_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "url", ["http://localhost:11434/v1", "http://127.0.0.1:8000", "http://[::1]:8000/v1", "http://llm.localhost"]
)
def test_address_of_this_machine_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="endpoint of the coder") as refused:
        model_access.require_reachable(asked(base_url=url))
    assert f"AUTOQEC_CODER_BASE_URL=http://{socket.gethostname()}" in str(refused.value.hint)
    model_access.require_reachable(asked(base_url=url, cassette=True))
    plugin.variables_elsewhere(RunSpec().with_block(asked(base_url=url)), same_machine=True)


@pytest.mark.parametrize("url", [None, "https://gateway.example.org/v1", "http://10.0.0.5:8000", "http://[bad"])
def test_other_addresses_are_accepted(url: str | None) -> None:
    model_access.require_reachable(asked(base_url=url))


@pytest.mark.parametrize(
    ("backend", "variable"),
    [("anthropic", "ANTHROPIC_BASE_URL"), ("claude", "ANTHROPIC_BASE_URL"), ("codex", "OPENAI_BASE_URL")],
)
def test_address_in_the_environment_is_checked_for_the_backend_that_reads_it(
    monkeypatch: pytest.MonkeyPatch, backend: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://localhost:4000")
    with pytest.raises(UsageError) as refused:
        model_access.require_reachable(asked(backend))
    assert f"{variable}=http://{socket.gethostname()}:4000" in str(refused.value.hint)
    model_access.require_reachable(asked("gemini"))
    model_access.require_reachable(asked(backend, "https://gateway.example.org"))


@pytest.mark.parametrize("port", ["99999", "abc"])
def test_impossible_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match=r"(?i)port"):
        model_access.require_reachable(asked(base_url=f"http://localhost:{port}"))


@pytest.mark.parametrize(("options", "is_asked"), [(asked(), True), (ModelOptions(), False)])
def test_job_sees_keys_and_connection_only_if_it_asks_a_model(options: ModelOptions, is_asked: bool) -> None:
    names = {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "HTTPS_PROXY", "CODEX_HOME", "SSL_CERT_FILE"}
    assert names & set(model_access.exported_variables(options)) == (names if is_asked else set())


def test_job_sees_the_key_that_the_variable_of_a_role_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "GATEWAY_KEY")
    assert {"AUTOQEC_CODER_API_KEY_ENV", "GATEWAY_KEY"} <= set(model_access.exported_variables(asked()))
