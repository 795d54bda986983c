"""The env, problem and agent of the Runner's tests."""

from tests.unit.runner.conftest import agent, env, env_text, layout, ok_round, problem, quick_smoke

__all__ = ["agent", "env", "env_text", "layout", "ok_round", "problem", "quick_smoke"]
