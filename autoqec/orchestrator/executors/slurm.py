"""One SLURM job a round: ordered on disk first, found again by whoever goes on with the run, believed by its files.

The job is the Runner's round. The judge and its secret stay with the process that holds the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import autoqec
from autoqec.contracts.job import JobOrder
from autoqec.contracts.profiles import PROFILES, Profile
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.orchestrator import worktree
from autoqec.orchestrator.executors.local import OnEvent
from autoqec.orchestrator.failpoint import reach
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.system import machine, sandbox, slurm

if TYPE_CHECKING:
    from autoqec.runner.collect import Events

LOOK_S, ASK_S = 0.5, 5.0  # for the round's files; of SLURM, whose controller serves everybody
SETTLE_S = 10.0  # until what a node wrote is seen here, after its job has ended
SPARE_MIN, SPARE_GB = 15, 1.0  # the round's own limits are to break first


def filled(options: Mapping[str, str], profile: Profile, threads: int = 1) -> dict[str, str]:
    """`--slurm` options with what a round of this profile needs where they do not say."""
    needed = {
        "time": str(math.ceil(profile.round_wallclock_s / 60) + SPARE_MIN),
        "cpus": str(threads),
        "mem": f"{math.ceil(1000 * (profile.memory_gb + SPARE_GB))}M",
    }
    return {**needed, **options}


class Slurm:
    """Up to `slots` jobs at once. options: of `--slurm`, as `host.slurm.parse` gives them.

    look_s, ask_s, settle_s: how often files are looked for and SLURM is asked, and how long files may lag.
    """

    def __init__(
        self,
        slots: int = 1,
        options: Mapping[str, str] | None = None,
        *,
        look_s: float = LOOK_S,
        ask_s: float = ASK_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.room, self.options = slots, dict(options or {})
        self.look_s, self.ask_s, self.settle_s = look_s, ask_s, settle_s
        self.open: list[Round] = []

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> Round:
        """Raises InputError, with the order called off, where SLURM refuses."""
        options = filled(self.options, PROFILES[config.profile], config.threads)
        changes_code = config.modules_dir is not None and not worktree.is_config_only(Path(config.modules_dir))
        order = JobOrder(
            name=f"autoqec-{config.round_idx}-{config.round_attempt_id}",
            options=options,
            code_sha256=machine.code_sha256(),
            needs_sandbox=changes_code and not sandbox.waived(),
            config=config,
        )
        one = Round(self, order, on_event)
        one.write()
        reach("job_ordered")
        one.send()
        self.open.append(one)
        return one

    def attach(self, order: JobOrder, on_event: OnEvent) -> Round:
        """Go on with a round that an earlier process ordered."""
        one = Round(self, order, on_event)
        self.open.append(one)
        return one


class Round:
    """A round that is a job's."""

    def __init__(self, executor: Slurm, order: JobOrder, on_event: OnEvent) -> None:
        self._executor, self.order, self._on_event = executor, order, on_event
        self.layout = RoundLayout(Path(order.config.round_dir), order.config.round_idx)
        self._told: dict[str, Any] = {}
        self._events: Events | None = None

    def write(self) -> None:
        atomic.write_json(self.layout.job, self.order.dump())

    def send(self) -> None:
        """Have SLURM queue it, and keep its number."""
        from autoqec.runner import job

        order, package = self.order, Path(autoqec.__file__).resolve().parents[1]
        arguments = (str(self.layout.dir), self.layout.round)
        try:
            number = slurm.submit(
                job.work,
                *arguments,
                folder=self.layout.job_dir,
                name=order.name,
                options=order.options,
                package=package,
            )
        except BaseException:
            self.call_off()
            raise
        reach("job_queued")
        self._numbered(number)
        reach("job_numbered")

    def result(self) -> RoundMetrics:
        """Its metrics, waited for: its files first, then what SLURM says of it."""
        asked = float("-inf")
        while (metrics := self._complete()) is None:
            for one in self._executor.open:
                one.forward()
            if time.monotonic() - asked >= self._executor.ask_s:
                found = self._look()
                asked = time.monotonic()
                if found.life in ("ended", "gone"):
                    metrics = self._settled(found)
                    break
            time.sleep(self._executor.look_s)
        self._executor.open.remove(self)
        return metrics

    def cancel(self) -> None:
        """End the job and call the order off; a round that is complete is left for whoever goes on."""
        if self._complete() is not None:
            return
        with suppress(ConnectionError):
            number = self.order.job_id or slurm.find(self.order.name)
            if number is not None:
                slurm.cancel(number)
        self.call_off()

    def call_off(self) -> None:
        """A job that begins from now on finds nothing to do, and recovery closes the round."""
        with atomic.disk(self.layout.job):
            self.layout.job.unlink(missing_ok=True)
        atomic.fsync_dir(self.layout.dir)

    def forward(self) -> None:
        """What the round's child says of its progress, where its files can be seen from here."""
        from autoqec.runner.collect import Events
        from autoqec.runner.runner import SCRATCH

        if self._events is None:
            self._events = Events(self.layout.dir / SCRATCH / "out", self.layout.round, self._on_event)
        self._events.forward()

    def _complete(self) -> RoundMetrics | None:
        """The pointer in the worktree is the last file that a round writes."""
        from autoqec.runner.runner import stored_metrics

        place = self.order.config.code_cwd
        if place is None or not (Path(place) / pointer_on_branch(self.layout.round)).exists():
            return None
        return stored_metrics(self.layout)

    def _look(self) -> slurm.Job:
        """What SLURM says; a round whose job has no number yet gets it, or is queued."""
        from autoqec.runner import job

        try:
            if self.order.job_id is None:
                number = job.claimed_by(self.layout) or slurm.find(self.order.name)
                if number is None:
                    self.send()
                else:
                    self._numbered(number)
        except ConnectionError as error:
            found = slurm.Job("unreachable", why=str(error))
        else:
            found = slurm.look(str(self.order.job_id))
        self._tell(found)
        return found

    def _numbered(self, number: str) -> None:
        self.order = self.order.model_copy(update={"job_id": number})
        self.write()

    def _tell(self, found: slurm.Job) -> None:
        phase = {"PENDING": "queued", "RUNNING": "running"}.get(found.state, found.state.lower() or found.life)
        told = {"job": self.order.job_id, "state": found.state or found.life, "why": found.why, "phase": phase}
        if told != self._told:
            self._told = told
            self._on_event("job", {"round": self.layout.round, **told})

    def _settled(self, found: slurm.Job) -> RoundMetrics:
        """A job that has ended: its files, once they can be seen; else the reason why there are none."""
        from autoqec.runner import runner

        deadline = time.monotonic() + self._executor.settle_s
        while (metrics := self._complete()) is None and time.monotonic() < deadline:
            time.sleep(self._executor.look_s)
        if metrics is not None:
            return metrics
        over = found.state in slurm.OVER_LIMIT
        return runner.conclude(self.order.config, "killed_by_safety" if over else "train_error", self._reason(found))

    def _reason(self, found: slurm.Job) -> str:
        from autoqec.runner import runner

        number, options = self.order.job_id, self.order.options
        if found.life == "gone":
            said = f"SLURM no longer knows job {number}, which left no result"
            return f"{said} ({found.why})" if found.why else said
        limits = {
            "TIMEOUT": f", asked for time={options['time']}",
            "OUT_OF_MEMORY": f", asked for mem={options['mem']}",
        }
        said = f"SLURM job {number} ended {found.state}{limits.get(found.state, '')} ({found.why}) and left no result"
        return said + runner.tail(self.layout.job_dir / f"{number}_0_log.out")
