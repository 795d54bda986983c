"""Configs that ask for GPUs which this machine does not have are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Workspace

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is installed; CUDA_VISIBLE_DEVICES= hides it")


@pytest.mark.parametrize("more", [("--dry-run",), ("--rounds", "1")])
@pytest.mark.parametrize(
    ("pins", "hint"),
    [
        (("training.device=cuda",), "hint: set `training.device: cpu`"),
        (("training.loop=sync", "training.sync.backend=nccl"), "hint: set `training.sync.backend: gloo`"),
    ],
)
def test_run_with_missing_gpu_is_rejected(
    workspace: Workspace, pins: tuple[str, ...], hint: str, more: tuple[str, ...]
) -> None:
    options = [f"--pin={pin}" for pin in pins]
    shown = workspace.autoqec("run", "env.yaml", "--profile", "smoke", *options, *more)
    assert shown.code == 2 and "torch finds 0 CUDA GPUs" in shown.err and hint in shown.err, shown.err
    assert not (workspace.root / "runs").exists()


def test_run_round_with_missing_gpu_is_rejected(workspace: Workspace, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("type: mlp\nmlp: {}\ntraining: {device: 'cuda:1'}\n")
    shown = workspace.autoqec("run-round", "env.yaml", str(config), str(tmp_path / "round"), "--profile", "smoke")
    assert shown.code == 2 and "GPU 1 is not available" in shown.err, shown.err
    assert not (tmp_path / "round").exists()
