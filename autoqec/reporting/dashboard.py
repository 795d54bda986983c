"""Progress, limits and results of a run in progress, for the live screens of `run` and `watch`."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from autoqec.contracts.history import HistoryRow
from autoqec.reporting import live_status, run_report
from autoqec.reporting.live_status import SessionLimits
from autoqec.reporting.summary import front_table, last_rounds, run_title
from autoqec.reporting.text import count, duration, plain
from autoqec.store.layout import RunLayout

SHOWN_ROUNDS = 6


class Dashboard:
    """State of a run as of the last `refresh`; drawing reads no files, so it may happen in another thread."""

    def __init__(self, layout: RunLayout, clock: Callable[[], float] = time.time) -> None:
        self.layout, self.clock = layout, clock
        self._verifier_s: dict[int, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the run again. Raises what `run_report.load` raises."""
        self.run = run_report.load(self.layout)
        self.live = live_status.read(self.layout) if self.run.running else live_status.LiveStatus(SessionLimits(), {})
        self.llm_usage = self.run.llm_usage
        self.finished = self.run.finished_rows
        self.compute_s = sum((row.train_wallclock_s or 0.0) + (row.eval_wallclock_s or 0.0) for row in self.finished)
        self.round_s = (self.compute_s + sum(map(self._verifier_seconds, self.finished))) / max(1, len(self.finished))
        self._front = front_table(self.run) if self.run.front else None  # built here, because it reads reports
        shown, sealed = self.finished[-SHOWN_ROUNDS:], self.run.on_sealed_shots
        self._rounds = last_rounds(shown, sealed=sealed) if self.finished else None
        self._last_end = self._end_of(self.finished[-1]) if self.finished else 0.0

    def _end_of(self, row: HistoryRow) -> float:
        """Return the seconds since the epoch; rows of version 1 hold no time, so the mtime of the file replaces it."""
        return row.finished_at.timestamp() if row.finished_at else self.layout.history.stat().st_mtime

    def _verifier_seconds(self, row: HistoryRow) -> float:
        """Duration of the verification of a round; 0 if it was not verified."""
        if row.round not in self._verifier_s:
            self._verifier_s[row.round] = run_report.verification_seconds(self.layout, row)
        return self._verifier_s[row.round]

    def seconds_left(self) -> float | None:
        """Estimated time until the limits end the run; None if no limit is set or no round has finished."""
        plan, now = self.live.plan, self.clock()
        ends = []
        if self.finished and self.round_s > 0:
            # The current round began when the last one ended.
            elapsed_in_round = min(max(0.0, now - max(self._last_end, plan.began)), self.round_s)
            if plan.rounds is not None:
                rest = max(0, plan.rounds - len(self.finished)) * self.round_s / max(1, plan.parallel)
                ends.append(max(0.0, rest - elapsed_in_round) if rest else 0.0)
            if plan.compute_hours is not None and self.compute_s > 0:
                share = (3600 * plan.compute_hours - self.compute_s) / self.compute_s
                ends.append(max(0.0, share * len(self.finished) * self.round_s / max(1, plan.parallel)))
        if plan.hours is not None:
            ends.append(max(0.0, plan.began + 3600 * plan.hours - now))
        return min(ends) if ends else None

    def head(self) -> RenderableType:
        """Run, results, pace, time left, used limits and sandbox backend."""
        plan = self.live.plan
        of = f" of {plan.rounds}" if plan.rounds is not None else ""
        state = [f"{len(self.finished)}{of} rounds, {self.run.n_verified} verified, {len(self.run.front)} on the front"]
        if self.round_s:
            state.append(f"{duration(self.round_s)} per round")
        left = self.seconds_left()
        if left is not None and round(left) > 0:
            state.append(f"about {duration(left)} left of the run")
        elif left is not None and len(self.finished) < (plan.rounds or 0):
            state.append("the last round takes longer than the earlier ones")
        title = Text(" · ".join([run_title(self.run), *state]), style="bold")
        return Group(title, Text(" · ".join(self._limits()), style="dim"))

    def _limits(self) -> list[str]:
        """Used part of each limit, and the sandbox backend."""
        plan, parts = self.live.plan, []
        if plan.hours is not None:
            parts.append(f"{(self.clock() - plan.began) / 3600:.2f} of {plan.hours:g} hours")
        of = f" of {plan.compute_hours:g}" if plan.compute_hours is not None else ""
        hours = self.compute_s / 3600
        parts.append(f"{hours:{'.2f' if hours >= 0.05 else '.1g'}}{of} compute hours")
        for name, limit_hours in (("CPU", plan.cpu_hours), ("GPU", plan.gpu_hours)):
            parts += [f"at most {limit_hours:g} {name} hours"] if limit_hours is not None else []
        if plan.plateau is not None:
            parts.append(f"ends after {plan.plateau:g} rounds without a change of the front")
        if self.llm_usage is not None:
            cost = "cost unknown" if self.llm_usage["cost_usd"] is None else f"${self.llm_usage['cost_usd']:.2f}"
            limit = f" of ${plan.usd:.2f}" if plan.usd is not None else ""
            limit += f", at most {count(plan.tokens)} tokens" if plan.tokens is not None else ""
            parts.append(f"{count(self.llm_usage['calls'])} model calls, {cost}{limit}")
        backends = [row.sandbox for row in self.run.rows if row.sandbox] or [plan.sandbox]
        if backends[-1]:
            parts.append(f"sandbox {plain(backends[-1], 40)}")
        return parts

    def body(self) -> RenderableType:
        """Return the front and the last rounds."""
        return Group(*(part for part in (self._front, self._rounds) if part is not None))
