"""Calls of SLURM's commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoqec.extensions.slurm import commands, submission
from tests.support.clusters import Cluster


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_command_sees_no_key_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-a-key")
    monkeypatch.setenv("SLURM_CONF", "/a/slurm.conf")
    program(tmp_path, "squeue", 'echo "$ANTHROPIC_API_KEY|$SLURM_CONF|$1"; echo refused >&2; exit 3')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert commands.run_command("squeue", "--me") == (3, "|/a/slurm.conf|--me\nrefused\n")
    output = commands.run_command("squeue", exported=["ANTHROPIC_API_KEY"])[1]
    assert output.startswith("sk-a-key|")


def test_command_that_does_not_answer_or_exist_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_TIMEOUT_S", 0.2)
    program(tmp_path, "sbatch", "exec sleep 60")
    status, output = commands.run_command(str(tmp_path / "sbatch"))
    assert status != 0 and isinstance(submission.submission_error(output, {}), ConnectionError), "no refusal"
    status, output = commands.run_command(str(tmp_path / "nothing"))
    assert status != 0 and "nothing" in output


@pytest.mark.parametrize(("nodes", "partition", "expected"), [(None, None, True), (["a", "b"], "main", False)])
def test_cluster_of_this_machine_alone_is_recognized(
    cluster: Cluster, nodes: list[str] | None, partition: str | None, expected: bool
) -> None:
    if nodes:
        cluster.change(nodes=nodes)
    assert commands.has_only_this_machine(partition) is expected
