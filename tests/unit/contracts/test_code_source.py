"""Kinds of code that extensions add, and what is left without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Registered before the contracts of envs are imported: a kind of an outside package, and one that cannot be imported.
SCRIPT = """
from typing import Any, Literal
import stim
from pydantic import Field
from autoqec import plugins
from autoqec.contracts.code_source import CodeSource
from autoqec.errors import UsageError

class Line(CodeSource):
    kind: Literal["line"] = "line"
    rounds: int = Field(default=1, ge=1)

    def build(self, env: Any, p: float | None) -> stim.Circuit:
        return stim.Circuit.generated(
            "repetition_code:memory", distance=3, rounds=self.rounds, before_round_data_depolarization=p or 0
        )

def load(group, name):
    if name == "line":
        return Line
    raise UsageError("cannot be imported")

plugins.names, plugins.load = (lambda group: ("broken", "line")), load
from autoqec.locate import generated_envs
from autoqec.qec.problem import Problem
from autoqec.runner.shot_source import SimulatedShots, shot_source
from autoqec.store.files import env_from_data, load_env, parse_env, dump_config
from autoqec.locate import builtin_envs

smoke = load_env(builtin_envs()["smoke"])[0]
data = smoke.dump() | {"code": {"kind": "line", "rounds": 2}}
env = env_from_data(data, location="env", directory=".")
assert parse_env(dump_config(env.dump()), location="env") == env and not env.code.own_shots
problem = Problem.from_env(env)
assert problem.rounds == 2 and problem.n_detectors == 6
assert isinstance(shot_source(problem), SimulatedShots) and len(shot_source(problem).validation(10)) == 10
assert env.code.verification_session() is None and not generated_envs()
try:
    env_from_data(smoke.dump() | {"code": {"kind": "recorded_shots"}}, location="env", directory=".")
except UsageError as error:
    assert "'line'" in error.message and "recorded_shots" in error.message
else:
    raise AssertionError("recorded shots without their extension")
"""


def test_a_kind_of_an_outside_package_is_built_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
