"""What a resume does if the installed code is not the code that the run began with."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.errors import ManualInterventionRequired
from autoqec.orchestrator.run_checks import code_change
from autoqec.system import machine
from tests.support import rounds

OTHER = "f" * 64


def info(**more: Any) -> Any:
    known = {"code_sha256": machine.code_sha256(), "package_sha256": machine.package_sha256()}
    return rounds.info(**known | more)


def test_same_code_needs_no_note() -> None:
    assert code_change(info()) is None


def test_change_that_can_change_results_pauses() -> None:
    with pytest.raises(ManualInterventionRequired, match="can change results"):
        code_change(info(code_sha256=OTHER, package_sha256=OTHER))


def test_change_elsewhere_is_noted() -> None:
    assert "cannot change results" in str(code_change(info(package_sha256=OTHER)))
