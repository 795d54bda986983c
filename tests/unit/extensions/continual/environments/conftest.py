"""The env and round directory of the Runner's tests."""

from tests.unit.runner.conftest import env, layout

__all__ = ["env", "layout"]
