"""Calls of SLURM's commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoqec.extensions.slurm import programs as slurm_commands
from autoqec.extensions.slurm import submission as slurm


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_query_is_one_process_and_sees_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks every few seconds: a supervisor would take most of its CPU time on the login node."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-a-key")
    monkeypatch.setenv("SLURM_CONF", "/a/slurm.conf")
    program(tmp_path, "squeue", 'echo "$PPID|$ANTHROPIC_API_KEY|$SLURM_CONF|$1"; echo refused >&2; exit 3')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert slurm_commands.run_command("squeue", "--me") == (3, f"{os.getpid()}||/a/slurm.conf|--me\nrefused\n")


def test_command_that_does_not_answer_or_exist_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "_TIMEOUT_S", 0.2)
    program(tmp_path, "squeue", "exec sleep 60")
    status, output = slurm_commands.run_command(str(tmp_path / "squeue"))
    assert status != 0 and "no answer" in output
    status, output = slurm_commands.run_command(str(tmp_path / "nothing"))
    assert status != 0 and "nothing" in output


def test_submission_without_an_answer_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "_TIMEOUT_S", 0.2)
    program(tmp_path, "sbatch", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    status, output = slurm_commands.run_sbatch("--wrap=true")
    assert status != 0 and isinstance(slurm.submission_error(output, {}), ConnectionError)


def test_submission_ends_with_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a supervisor, which ends it: a job that is queued later would be queued twice by the next start."""
    program(tmp_path, "sbatch", 'tr "\\0" " " < /proc/$PPID/cmdline; echo "$@"; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    status, output = slurm_commands.run_sbatch("--test-only")
    assert status == 1 and "supervise.py" in output and output.endswith("--test-only\n")
