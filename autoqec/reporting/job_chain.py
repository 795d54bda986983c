"""The jobs of a detached run, as detached.json and SLURM describe them."""

from __future__ import annotations

from autoqec.errors import AutoqecError
from autoqec.reporting.text import plain
from autoqec.store import run_control
from autoqec.store.layout import RunLayout
from autoqec.system.slurm_script import live_jobs


def describe_chain(layout: RunLayout) -> str | None:
    """Return one line about the jobs of a run that is or was detached, and what to do; None for any other run."""
    what, job_ids = "Detached run", tuple[str | None, ...]()
    try:
        state = run_control.last_chain(layout)
    except AutoqecError as error:
        what = f"{what}, but {plain(error.summary, 600)}"
    else:
        if state is None:
            return None
        if state.ended is not None:
            return f"Detached run, ended: {plain(state.ended, 600)}"
        job_ids = state.job_id, state.successor_id
    jobs = live_jobs(run_control.chain_job_name(layout), *job_ids)
    if jobs == {}:
        return f"{what}: SLURM has no job of it. Continue it: autoqec run --resume {layout.run_id}"
    if jobs is None:
        known = ", then ".join(f"job {job_id}" for job_id in job_ids if job_id is not None) or "its jobs"
        listed = f"{known}; SLURM does not answer on this machine"
    else:
        listed = ", then ".join(f"job {job_id} ({state.lower()})" for job_id, state in jobs.items())
    return f"{what}: {listed}. Stop it: autoqec stop {layout.run_id}"


def has_no_jobs(layout: RunLayout) -> bool:
    """Return whether SLURM has no job of a detached run any more, although its chain did not end in order."""
    job_ids = tuple[str | None, ...]()
    try:
        state = run_control.read_detached(layout)
    except AutoqecError:
        pass
    else:
        if state is None:
            return False
        job_ids = state.job_id, state.successor_id
    return live_jobs(run_control.chain_job_name(layout), *job_ids) == {}
