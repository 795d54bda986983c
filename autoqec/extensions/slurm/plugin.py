"""SLURM as an executor of `autoqec run`."""

from __future__ import annotations

from autoqec.contracts.events import OnEvent
from autoqec.contracts.job import JobOrder
from autoqec.orchestrator.executors import Executor, RoundFuture
from autoqec.orchestrator.run import Run


class SlurmPlugin:
    """Measures rounds in jobs of SLURM."""

    def attach(self, run: Run, executor: Executor | None, order: JobOrder, on_event: OnEvent) -> RoundFuture:
        """Return the measurement that an earlier process submitted."""
        from autoqec.extensions.slurm.executor import SlurmExecutor

        cluster = executor if isinstance(executor, SlurmExecutor) else SlurmExecutor()
        return cluster.attach(order, on_event)


plugin = SlurmPlugin()
