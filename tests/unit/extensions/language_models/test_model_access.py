"""Addresses of language models that jobs of a detached run reach."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from autoqec.contracts.settings import ModelSettings, RunSettings

from autoqec.errors import UsageError
from autoqec.extensions.language_models import model_access
from tests.support.clusters import Cluster, fake_slurm


def asked(backend: str = "openai", base_url: str | None = None, *, cassette: bool = False) -> RunSettings:
    model = ModelSettings(backend=backend, model="a-model", base_url=base_url)
    return RunSettings(models={"coder": model}, cassette=cassette)


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of this machine and another one."""
    cluster = fake_slurm(tmp_path, nodes=[socket.gethostname(), "n2"])
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    for name in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return cluster


@pytest.mark.parametrize(
    "url", ["http://localhost:11434/v1", "http://127.0.0.1:8000", "http://[::1]:8000/v1", "http://llm.localhost"]
)
def test_address_of_this_machine_is_refused(two_nodes: Cluster, url: str) -> None:
    with pytest.raises(UsageError, match="endpoint of the coder") as refused:
        model_access.require_reachable(asked(base_url=url), {})
    assert f"AUTOQEC_CODER_BASE_URL=http://{socket.gethostname()}" in str(refused.value.hint)
    model_access.require_reachable(asked(base_url=url, cassette=True), {})
    two_nodes.change(nodes=[socket.gethostname()])
    model_access.require_reachable(asked(base_url=url), {"partition": "main"})


@pytest.mark.parametrize("url", [None, "https://gateway.example.org/v1", "http://10.0.0.5:8000", "http://[bad"])
def test_other_addresses_are_accepted(two_nodes: Cluster, url: str | None) -> None:
    model_access.require_reachable(asked(base_url=url), {})


@pytest.mark.parametrize(
    ("backend", "variable"),
    [("anthropic", "ANTHROPIC_BASE_URL"), ("claude", "ANTHROPIC_BASE_URL"), ("codex", "OPENAI_BASE_URL")],
)
def test_address_in_the_environment_is_checked_for_the_backend_that_reads_it(
    two_nodes: Cluster, monkeypatch: pytest.MonkeyPatch, backend: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://localhost:4000")
    with pytest.raises(UsageError) as refused:
        model_access.require_reachable(asked(backend), {})
    assert f"{variable}=http://{socket.gethostname()}:4000" in str(refused.value.hint)
    model_access.require_reachable(asked("gemini"), {})
    model_access.require_reachable(asked(backend, "https://gateway.example.org"), {})


@pytest.mark.parametrize("port", ["99999", "abc"])
def test_impossible_port_is_refused(two_nodes: Cluster, port: str) -> None:
    with pytest.raises(UsageError, match=r"(?i)port"):
        model_access.require_reachable(asked(base_url=f"http://localhost:{port}"), {})


@pytest.mark.parametrize(
    ("settings", "is_asked"), [(asked(), True), (asked(cassette=True), False), (RunSettings(), False)]
)
def test_job_sees_keys_and_connection_only_if_it_asks_a_model(settings: RunSettings, is_asked: bool) -> None:
    names = {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "HTTPS_PROXY", "CODEX_HOME", "SSL_CERT_FILE"}
    assert names & set(model_access.exported_variables(settings)) == (names if is_asked else set())


def test_job_sees_the_key_that_the_variable_of_a_role_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "GATEWAY_KEY")
    assert {"AUTOQEC_CODER_API_KEY_ENV", "GATEWAY_KEY"} <= set(model_access.exported_variables(asked()))
