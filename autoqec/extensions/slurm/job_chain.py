"""The jobs of a detached run, as detached.json and SLURM describe them."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.job import DetachedRun
from autoqec.errors import AutoqecError
from autoqec.extensions.slurm.script import live_jobs
from autoqec.reporting.text import plain
from autoqec.store import run_control
from autoqec.store.layout import RunLayout


@dataclass(frozen=True)
class JobChain:
    """Chain of jobs of a run that is or was detached.

    Attributes:
        state: Content of detached.json; None if it is damaged or cannot be read.
        damage: What is wrong with detached.json; None if nothing is.
        live: Id -> SLURM's state of its jobs that are queued or running, oldest first; None if SLURM does not answer on
            this machine. SLURM is not asked about a chain that has ended.
    """

    state: DetachedRun | None
    damage: str | None
    live: dict[str, str] | None

    @property
    def ended(self) -> str | None:
        """Why the chain ended; None if it goes on, or if that is not known."""
        return None if self.state is None else self.state.ended

    @property
    def recorded_ids(self) -> tuple[str, ...]:
        """Recorded ids of the job that holds the run and of its successor, without those that are not known."""
        ids = () if self.state is None else (self.state.job_id, self.state.successor_id)
        return tuple(job_id for job_id in ids if job_id is not None)


def read_chain(layout: RunLayout) -> JobChain | None:
    """Return the chain of jobs of a run that is or was detached; None for any other run."""
    state, damage = None, None
    try:
        state = run_control.last_chain(layout)
    except AutoqecError as error:
        damage = error.summary
    else:
        if state is None:
            return None
    chain = JobChain(state, damage, {})
    if chain.ended is not None:
        return chain
    return JobChain(state, damage, live_jobs(run_control.chain_job_name(layout), *chain.recorded_ids))


def describe_chain(layout: RunLayout) -> str | None:
    """Return one line about the jobs of a run that is or was detached, and what to do; None for any other run."""
    chain = read_chain(layout)
    if chain is None:
        return None
    if chain.ended is not None:
        return f"Detached run, ended: {plain(chain.ended, 600)}"
    what = "Detached run" if chain.damage is None else f"Detached run, but {plain(chain.damage, 600)}"
    if chain.live == {}:
        return f"{what}: SLURM has no job of it. Continue it: autoqec run --resume {layout.run_id}"
    if chain.live is None:
        known = ", then ".join(f"job {job_id}" for job_id in chain.recorded_ids) or "its jobs"
        listed = f"{known}; SLURM does not answer on this machine"
    else:
        listed = ", then ".join(f"job {job_id} ({state.lower()})" for job_id, state in chain.live.items())
    return f"{what}: {listed}. Stop it: autoqec stop {layout.run_id}"


def has_no_jobs(layout: RunLayout) -> bool:
    """Return whether SLURM has no job of a detached run any more, although its chain did not end in order."""
    chain = read_chain(layout)
    return chain is not None and chain.ended is None and chain.live == {}
