"""Baselines that are measured independently of the env's list."""

from __future__ import annotations

from autoqec.contracts.env import DemFileCode, EnvSpec, FileNoise
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from autoqec.verification.baselines import Baselines
from tests.support.envs import surface

# One mechanism with two components: matching assumes independence, correlated matching does not.
CORRELATED_DEM = """
error(0.04) D0 ^ D1 L0
error(0.001) D0
error(0.05) D1 D2
error(0.2) D2
"""


def weak_env() -> EnvSpec:
    code = DemFileCode(path="weak.dem", text=CORRELATED_DEM)
    return surface().model_copy(update={"code": code, "noise": FileNoise(), "baselines": ("mwpm",)})


def test_correlated_matching_is_measured_without_being_listed() -> None:
    problem = Problem.from_env(weak_env())
    baselines = Baselines(problem)
    assert baselines.names == ("mwpm", "mwpm_correlated")
    masks = baselines.error_mask(sample(problem, 20_000, 1))
    assert masks["mwpm_correlated"].sum() < 0.9 * masks["mwpm"].sum()
