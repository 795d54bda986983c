"""A round with invalid custom code fails as `compile_error` with a reason; no default replaces the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.decoders.test_custom_fn import CUSTOM, GOOD

from .conftest import Ran, config_for
from .test_runner import copy_modules, run_failing_round


def written(tmp_path: Path, code: str) -> str:
    modules = copy_modules(tmp_path / "modules")
    (Path(modules) / "custom_fn.py").write_text(code, encoding="utf-8")
    return modules


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("+ strength", "[:, :2]"), "MessageFn returned (2, 2, 4), expected (2, 5, 4)"),
        (("import torch\n", "import torch\nimport os\n"), "import of os is not allowed"),
    ],
)
def test_rejected_custom_code_is_a_compile_error(
    env_text: str, tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    metrics = run_failing_round(env_text, tmp_path, CUSTOM, modules_dir=written(tmp_path, GOOD.replace(*change)))
    assert metrics.status == "compile_error" and reason in (metrics.status_reason or ""), metrics.status_reason


def test_modules_without_custom_fn_are_a_compile_error(env_text: str, tmp_path: Path) -> None:
    metrics = run_failing_round(env_text, tmp_path, CUSTOM, modules_dir=copy_modules(tmp_path / "modules"))
    assert metrics.status == "compile_error" and "have no custom_fn.py" in (metrics.status_reason or "")


def test_valid_custom_code_trains(env_text: str, tmp_path: Path) -> None:
    ran = Ran(config_for(env_text, tmp_path / "round_1", CUSTOM, modules_dir=written(tmp_path, GOOD)))
    assert ran.metrics.status == "ok", ran.metrics.status_reason
