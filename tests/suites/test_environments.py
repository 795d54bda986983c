"""Every text environment passes the conformance suite."""

from __future__ import annotations

import pytest

from autoqec.extensions.continual.environments.qa import MathQAEnv, MCQEnv, QAEnv
from tests.suites import environment_suite

CASES = {
    "qa": (lambda: QAEnv("2+2?", "4", {"id": "q1"}), ["4"]),
    "qa wrong": (lambda: QAEnv("2+2?", "4", instruction_template="Say: {question}"), ["5"]),
    "math": (lambda: MathQAEnv("2+2?", "4"), ["\\boxed{4.0}"]),
    "mcq": (lambda: MCQEnv("2+2?", "B", choices=["3", "4"]), ["no idea"]),
}


@pytest.mark.parametrize("case", CASES)
def test_environments_conform(case):
    make, actions = CASES[case]
    environment_suite.check(make, actions)
