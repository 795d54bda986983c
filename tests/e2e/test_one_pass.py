"""A run parses its env once and builds each decoding problem once per process, and hands them on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.locate import builtin_envs
from autoqec.orchestrator.loop import run_rounds
from autoqec.qec import problem
from autoqec.store import files
from tests.support.starts import start_run


def test_env_and_problems_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real round with its verification; the calls are counted and passed on unchanged."""
    make_workspace(tmp_path / "workspace", builtin_envs()["smoke"])
    files._parse_env_once.cache_clear()
    problem._build.cache_clear()
    calls: Counter[Any] = Counter()
    build_source, validate = problem.build_source, files._validate

    def counted_build(env: Any, p: float | None) -> Any:
        calls["problem", p] += 1
        return build_source(env, p)

    def counted_validate(data: Any, **more: Any) -> Any:
        calls["env"] += 1
        return validate(data, **more)

    monkeypatch.setattr(problem, "build_source", counted_build)
    monkeypatch.setattr(files, "_validate", counted_validate)
    with start_run(tmp_path / "workspace/env.yaml", tmp_path / "workspace", "smoke", 1) as run:
        run_rounds(run, 1)
        (row,) = run.memory.history.rows()
        points = run.env.points
    assert row.status == "ok" and row.verify_verdict is not None
    assert calls.pop("env") <= 2  # the user's file, and the frozen copy that the run keeps
    assert calls == {("problem", p): 1 for p in points}
