"""Environments: text tasks for agents, and predecoder designs for learners, one at a time or many at once."""

from __future__ import annotations

from autoqec.environments.base import EnvDataset, Environment, StepResult
from autoqec.environments.hall_of_fame import HallOfFame
from autoqec.environments.parallel import ParallelEnvironments
from autoqec.environments.serial import SerialEnvironments

__all__ = ["EnvDataset", "Environment", "HallOfFame", "ParallelEnvironments", "SerialEnvironments", "StepResult"]
