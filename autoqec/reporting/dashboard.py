"""What a living run has come to, for the screens of `run` and `watch`: read from disk when asked, drawn at any time."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from autoqec.contracts.history import HistoryRow
from autoqec.reporting import live_status, run_data, run_view
from autoqec.reporting.live_status import RunLimits
from autoqec.reporting.run_view import RunView
from autoqec.reporting.summary import front_table, last_rounds
from autoqec.reporting.text import count, duration, plain
from autoqec.store.layout import RunLayout

SHOWN_ROUNDS = 6


class Dashboard:
    """The run as its files stood at the last `look`; drawing reads nothing, so a screen may do it from a thread."""

    def __init__(self, layout: RunLayout, clock: Callable[[], float] = time.time) -> None:
        self.layout, self.clock = layout, clock
        self._verifier_s: dict[int, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the run again. Raises what `run_view.load` raises."""
        self.view: RunView = run_view.load(self.layout)
        self.told = (
            live_status.read(self.layout) if run_data.living(self.layout) else live_status.LiveStatus(RunLimits(), {})
        )
        self.spent = run_data.spent(self.layout)
        self.ended = self.view.ended
        self.compute_s = sum((row.train_wallclock_s or 0.0) + (row.eval_wallclock_s or 0.0) for row in self.ended)
        self.round_s = (self.compute_s + sum(map(self._verifier_seconds, self.ended))) / max(1, len(self.ended))
        self._front = front_table(self.view) if self.view.front else None  # made here: it reads the judge's counts
        self._rounds = last_rounds(self.ended[-SHOWN_ROUNDS:]) if self.ended else None
        self._last_end = self._end_of(self.ended[-1]) if self.ended else 0.0

    def _end_of(self, row: HistoryRow) -> float:
        """Seconds since the epoch; rows of earlier versions hold no time, so the file's stands for it."""
        return row.finished_at.timestamp() if row.finished_at else self.layout.history.stat().st_mtime

    def _verifier_seconds(self, row: HistoryRow) -> float:
        """Seconds that the round took before the judge; 0 where it was not judged."""
        if row.verify_verdict is None:
            return 0.0
        if row.round not in self._verifier_s:
            report = run_view.report(self.layout.round(row.round)) if row.verify_wallclock_s is None else None
            self._verifier_s[row.round] = row.verify_wallclock_s or (report.judge_wallclock_s if report else 0.0)
        return self._verifier_s[row.round]

    def seconds_left(self) -> float | None:
        """Until the run's limits end it, at the pace of its history; None where no pace or no end is known."""
        plan, now = self.told.plan, self.clock()
        ends = []
        if self.ended and self.round_s > 0:
            # A round is under way since the last one ended; it takes no less than nothing.
            elapsed_in_round = min(max(0.0, now - max(self._last_end, plan.began)), self.round_s)
            if plan.rounds is not None:
                rest = max(0, plan.rounds - len(self.ended)) * self.round_s / max(1, plan.parallel)
                ends.append(max(0.0, rest - elapsed_in_round) if rest else 0.0)
            if plan.compute_hours is not None and self.compute_s > 0:
                share = (3600 * plan.compute_hours - self.compute_s) / self.compute_s
                ends.append(max(0.0, share * len(self.ended) * self.round_s / max(1, plan.parallel)))
        if plan.hours is not None:
            ends.append(max(0.0, plan.began + 3600 * plan.hours - now))
        return min(ends) if ends else None

    def head(self) -> RenderableType:
        """Run, what it has come to, pace and end, what it cost, and behind which walls."""
        info, plan = self.view.info, self.told.plan
        name = f"Run {info.run_id} · {plain(info.env_name)} · profile {info.profile} · seed {info.seed}"
        of = f" of {plan.rounds}" if plan.rounds is not None else ""
        state = [f"{len(self.ended)}{of} rounds, {self.view.verified} verified, {len(self.view.front)} on the front"]
        if self.round_s:
            state.append(f"{duration(self.round_s)} a round")
        left = self.seconds_left()
        if left is not None and round(left) > 0:
            state.append(f"about {duration(left)} left of the run")
        elif left is not None and len(self.ended) < (plan.rounds or 0):
            state.append("the last round takes longer than those before")
        return Group(Text(f"{name} · {' · '.join(state)}", style="bold"), Text(" · ".join(self._limits()), style="dim"))

    def _limits(self) -> list[str]:
        """What was used of each limit that was set, and the sandbox's tier."""
        plan, parts = self.told.plan, []
        if plan.hours is not None:
            parts.append(f"{(self.clock() - plan.began) / 3600:.2f} of {plan.hours:g} hours")
        of = f" of {plan.compute_hours:g}" if plan.compute_hours is not None else ""
        hours = self.compute_s / 3600
        parts.append(f"{hours:{'.2f' if hours >= 0.05 else '.1g'}}{of} compute hours")
        for name, limit_hours in (("CPU", plan.cpu_hours), ("GPU", plan.gpu_hours)):
            parts += [f"at most {limit_hours:g} of them on a {name}"] if limit_hours is not None else []
        if plan.plateau is not None:
            parts.append(f"ends after {plan.plateau:g} rounds that leave the front as it is")
        if self.spent is not None:
            cost = "cost unknown" if self.spent["cost_usd"] is None else f"${self.spent['cost_usd']:.2f}"
            limit = f" of ${plan.usd:.2f}" if plan.usd is not None else ""
            limit += f", at most {count(plan.tokens)} tokens" if plan.tokens is not None else ""
            parts.append(f"{count(self.spent['calls'])} model calls, {cost}{limit}")
        tiers = [row.sandbox for row in self.view.rows if row.sandbox] or [plan.sandbox]
        if tiers[-1]:
            parts.append(f"sandbox {plain(tiers[-1], 40)}")
        return parts

    def body(self) -> RenderableType:
        """The last rounds, a line each, and the front."""
        return Group(*(part for part in (self._front, self._rounds) if part is not None))
