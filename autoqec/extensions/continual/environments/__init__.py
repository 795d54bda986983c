"""Environments: text tasks for agents, and predecoder designs for learners, one at a time or many at once."""

from __future__ import annotations

from autoqec.extensions.continual.environments.base import EnvDataset, Environment, StepResult
from autoqec.extensions.continual.environments.multi import HallOfFame, ParallelEnvironments, SerialEnvironments

__all__ = ["EnvDataset", "Environment", "HallOfFame", "ParallelEnvironments", "SerialEnvironments", "StepResult"]
