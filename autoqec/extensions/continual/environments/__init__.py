"""Environments: text tasks for agents, and predecoder designs for learners, one at a time or many at once."""

from __future__ import annotations

from autoqec.extensions.continual.environments.base import EnvDataset, Environment, StepResult
from autoqec.extensions.continual.environments.hall_of_fame import HallOfFame
from autoqec.extensions.continual.environments.parallel import ParallelEnvironments
from autoqec.extensions.continual.environments.serial import SerialEnvironments

__all__ = ["EnvDataset", "Environment", "HallOfFame", "ParallelEnvironments", "SerialEnvironments", "StepResult"]
