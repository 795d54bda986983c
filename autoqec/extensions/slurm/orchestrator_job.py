"""The jobs in which a detached run executes: their options, names and commands."""

from __future__ import annotations

import itertools
import json
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime

from autoqec.contracts.job import DetachedRun
from autoqec.contracts.settings import RunSettings
from autoqec.errors import AutoqecError, ContractError, StorageError, UsageError
from autoqec.extensions.language_models import model_access
from autoqec.extensions.slurm import job_chain
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.script import any_alive, submit_command
from autoqec.installation import IMPORT_DIR
from autoqec.qec.decoder_trust import trusted_functions
from autoqec.store import atomic, run_control
from autoqec.store.layout import RunLayout
from autoqec.system import sandbox

DEFAULTS = {"time": "60", "cpus": "1", "mem": "4G"}
_INHERITED = ("partition", "account", "qos")  # from --slurm; GPUs and nodes of the rounds are not needed
_POSITION = "AUTOQEC_DETACHED"  # RUN:POSITION, in the jobs of a detached run
_STATE = "AUTOQEC_DETACHED_STATE"  # what detached.json held when the job was queued


def job_options(settings: RunSettings) -> dict[str, str]:
    """Return the SLURM options of the jobs. Raises UsageError for an invalid one."""
    of_rounds = slurm.parse_options(settings.slurm)
    inherited = {key: of_rounds[key] for key in _INHERITED if key in of_rounds}
    return {**DEFAULTS, **inherited, **slurm.parse_options(settings.detach_slurm, "--detach-slurm")}


def position(run_id: str) -> int | None:
    """Return the position in the chain of the job that this process is; None if it is not one of this run's jobs."""
    name, _, number = os.environ.get(_POSITION, "").partition(":")
    return int(number) if name == run_id and number.isdecimal() else None


def state_at_submission(run_id: str) -> DetachedRun | None:
    """Return what detached.json held when the job that this process is was queued; None if that is not known."""
    text = os.environ.get(_STATE)
    if text is None or position(run_id) is None:
        return None
    try:
        return DetachedRun.read(json.loads(text), location=_STATE)
    except (ValueError, ContractError):
        return None


def require_no_chain(layout: RunLayout) -> None:
    """Raise UsageError if jobs of a chain hold the run, or will, and this process is not one of them."""
    if position(layout.run_id) is not None:
        return
    chain = job_chain.read_chain(layout)
    if chain is None or chain.live == {}:
        return
    what = "the run is detached" if chain.damage is None else f"the run is detached, and {chain.damage}"
    known = next(iter(chain.live or chain.recorded_ids), None)
    message = what if known is None else f"{what}: SLURM job {known} holds it, or will"
    hint = f"autoqec stop {layout.run_id}"
    if chain.live is None:
        hint += f" on a machine of the cluster where SLURM answers; in a copy of the run delete {layout.detached}"
    raise UsageError(message, location=f"run {layout.run_id}", hint=hint)


def replace_damaged_state(layout: RunLayout) -> str | None:
    """Replace a state that is damaged or cannot be read, once `require_no_chain` has passed; return a note about it."""
    if position(layout.run_id) is not None:
        return None
    try:
        run_control.last_chain(layout)
    except AutoqecError as error:
        run_control.end_detached(
            layout, DetachedRun(number=1, began=datetime.now(UTC)), f"{error.summary}; no job was left"
        )
        return f"replaced: {error.summary}"
    return None


def _name_and_id(layout: RunLayout, number: int) -> tuple[str, str | None]:
    """Return name and id of the job at a position that is queued or running; None: the name is unused.

    A job that has ended, e.g. because the user cancelled it, stays known for some minutes: one in its place needs
    another name.
    """
    own_name = name = f"{run_control.chain_job_name(layout)}{number}"
    suffixes = itertools.count(2)
    while True:
        try:
            job_id = slurm.find_job(name)
        except ConnectionError:
            return name, None  # the submission asks again
        if job_id is None or any_alive(job_id) is not False:
            return name, job_id
        name = f"{own_name}.{next(suffixes)}"


def submit(
    layout: RunLayout, settings: RunSettings, number: int, recorded: DetachedRun, after: str | None = None
) -> str:
    """Queue the job at a position of the chain, unless it is queued or running, and return its id.

    Args:
        layout: The run.
        settings: Its settings.
        number: The position.
        recorded: Content of detached.json now, with which the job continues if it cannot read the file.
        after: Id of the job that has to end first.

    Raises:
        UsageError: SLURM refuses, or does not answer.
    """
    name, job_id = _name_and_id(layout, number)
    if job_id is not None:  # queued by a job that was requeued since
        return job_id
    with suppress(StorageError):  # it exists unless it was deleted; the job itself needs no log
        atomic.make_dir(layout.detached_logs)
    trusted = [word for name in sorted(trusted_functions()) for word in ("--trust-decoder", name)]
    return submit_command(
        [sys.executable, "-P", "-s", "-m", "autoqec.cli", "run", "--resume", layout.run_id, *trusted],
        name=name,
        options=job_options(settings),
        directory=layout.repo_root,
        log=layout.detached_logs / "%j.log",
        package=IMPORT_DIR,
        exported=[sandbox.OPT_OUT_VARIABLE, *model_access.exported_variables(settings)],
        variables={_POSITION: f"{layout.run_id}:{number}", _STATE: json.dumps(recorded.dump())},
        after=after,
    )
