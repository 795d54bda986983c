"""The environment of the jobs of a detached run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.job import DetachedRun
from autoqec.contracts.settings import ModelSettings, RunSettings
from autoqec.extensions.language_models.clients import cli_client
from autoqec.extensions.slurm import orchestrator_job
from autoqec.store.layout import RunLayout

RECORDED = DetachedRun(number=1, began=datetime.now(UTC))
MODEL = ModelSettings(backend="anthropic", model="claude-opus-5-5")
CONNECTION = {
    "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "HTTPS_PROXY", "https_proxy",
    "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
}  # fmt: skip


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the arguments of queued jobs."""
    jobs: list[dict[str, Any]] = []
    monkeypatch.setattr(orchestrator_job, "submit_command", lambda command, **given: jobs.append(given))
    return jobs


@pytest.mark.parametrize(
    ("settings", "is_asked"),
    [
        (RunSettings(models={"ideator": MODEL}), True),
        (RunSettings(), False),
        (RunSettings(models={"ideator": MODEL}, cassette=True), False),
    ],
)
def test_job_sees_keys_and_connection_only_if_it_asks_a_model(
    tmp_path: Path, submitted: list[dict[str, Any]], settings: RunSettings, is_asked: bool
) -> None:
    orchestrator_job.submit(RunLayout(tmp_path, "20260101-000000"), settings, 1, RECORDED)
    names = CONNECTION | {"ANTHROPIC_API_KEY", "OPENAI_API_KEY"}
    assert names & set(submitted[0]["exported"]) == (names if is_asked else set())


def test_job_sees_the_key_that_the_variable_of_a_role_names(
    tmp_path: Path, submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "GATEWAY_KEY")
    orchestrator_job.submit(RunLayout(tmp_path, "20260101-000000"), RunSettings(models={"coder": MODEL}), 1, RECORDED)
    assert {"AUTOQEC_CODER_API_KEY_ENV", "GATEWAY_KEY"} <= set(submitted[0]["exported"])


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_job_sees_what_the_command_lines_see(tmp_path: Path, submitted: list[dict[str, Any]], program: str) -> None:
    settings = RunSettings(models={"ideator": ModelSettings(backend=program, model=program)})
    orchestrator_job.submit(RunLayout(tmp_path, "20260101-000000"), settings, 1, RECORDED)
    seen = {*cli_client._SHARED_ENV_VARS, *cli_client._PROGRAM_ENV_VARS[program]} - {"USER", "LOGNAME"}
    assert seen <= set(submitted[0]["exported"])
