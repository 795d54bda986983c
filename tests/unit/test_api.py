"""The Python API: lazy, documented, frozen, and the same run as the command line starts."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import autoqec
from autoqec.errors import UsageError
from tests.conftest import Workspace
from tests.support import runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "search.py"


def test_import_loads_no_heavy_library() -> None:
    code = "import autoqec, sys; autoqec.load_env('smoke'); print([m for m in ('torch', 'stim') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves_and_has_a_docstring() -> None:
    for name in set(autoqec.__all__) - {"__version__"}:
        assert (getattr(autoqec, name).__doc__ or "").strip(), name
    assert set(autoqec.__all__) <= set(dir(autoqec))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        autoqec.missing  # noqa: B018


def test_loaded_run_has_frozen_results(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 6, artifacts=False)
    result = autoqec.load_run(layout.root)
    assert result.run_id == layout.run_id and [entry.round for entry in result.rounds] == [1, 2, 3, 4, 5, 6]
    best = result.front[0]
    assert best.outcome == "VERIFIED" and best.reduction is not None and best.reduction.low is not None
    assert best.reduction.low < best.reduction.estimate and result.stop_reason is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        best.round = 2  # type: ignore[misc]


@pytest.mark.parametrize("options", [{"round": 3}, {"profile": "tiny"}, {"ideator": "none"}, {"resume": "x"}])
def test_wrong_option_is_refused(
    options: dict[str, object], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    with pytest.raises(UsageError):
        autoqec.run("smoke", **options)
    assert not (workspace.root / "runs").exists()


def test_example_script_runs_a_round_and_its_checkpoint_decodes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=workspace.root,
        env=workspace.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 round(s), stopped: 1 of 1 rounds" in done.stdout
    monkeypatch.chdir(workspace.root)
    (run_dir,) = (workspace.root / "runs").glob("2*")
    env = autoqec.load_env("smoke")
    from autoqec.qec.problem import Problem

    n_detectors = Problem.from_env(env).n_detectors
    events = np.zeros((3, n_detectors), bool)
    predictions = autoqec.decode(run_dir / "round_1", events, unverified=True)
    assert predictions.shape == (3, 1) and not predictions.any()
    with pytest.raises(UsageError, match="n_shots"):
        autoqec.decode(run_dir / "round_1", events[:, 1:], unverified=True)
