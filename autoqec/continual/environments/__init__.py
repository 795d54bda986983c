"""Environments: text tasks for agents, and predecoder designs for learners, one at a time or many at once."""

from __future__ import annotations

from autoqec.continual.environments.base import EnvDataset, Environment, StepResult
from autoqec.continual.environments.hall_of_fame import HallOfFame
from autoqec.continual.environments.parallel import ParallelEnvironments
from autoqec.continual.environments.serial import SerialEnvironments

__all__ = ["EnvDataset", "Environment", "HallOfFame", "ParallelEnvironments", "SerialEnvironments", "StepResult"]
