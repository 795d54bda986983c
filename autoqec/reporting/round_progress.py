"""Progress of one running round, built from its events: phase, loss, and interim results of its shots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autoqec.contracts.events import Progress, RoundEnded, RoundEvent, RoundMeasured, RoundPlanned
from autoqec.contracts.round import PairedCounts
from autoqec.reporting.text import count, duration, plain, sparkline


@dataclass
class RoundProgress:
    """State of a running round; `counts` and `evidence` (e-value, threshold) are those of the current phase."""

    number: int
    clock: Callable[[], float]
    phase: str = "proposal"
    hypothesis: str = ""
    branch: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None
    phase_began: float = 0.0
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    counts: PairedCounts | None = None
    evidence: tuple[float, float] | None = None
    last_printed: float = float("-inf")
    failed: bool = False

    def update(self, event: RoundEvent) -> None:
        """Update from an event of the round."""
        if event.phase is not None and event.phase != self.phase:
            self.phase, self.phase_began, self.last_printed = event.phase, self.clock(), float("-inf")
            self.done, self.total, self.counts, self.evidence, self.losses = 0, 0, None, None, []
        if isinstance(event, RoundPlanned):
            self.hypothesis = event.hypothesis or self.hypothesis
            self.branch = event.branch or self.branch
        self.failed = self.failed or isinstance(event, RoundEnded) or _is_failure(event)
        self.eta_s = self.loss = None
        if isinstance(event, Progress):
            self._update_figures(event)

    def _update_figures(self, event: Progress) -> None:
        for done, total in ((event.step, event.steps), (event.shots, event.budget)):
            if done is not None:
                # Shots are drawn in chunks, which can be larger than the budget of a small --scale.
                self.done, self.total = done, max(done, total) if total else 0
        self.eta_s, self.loss = event.eta_s, event.loss
        if event.loss is not None:
            self.losses.append(event.loss)
        self.counts = event.counts or self.counts
        if event.e_value is not None and event.threshold is not None:
            self.evidence = (event.e_value, event.threshold)

    def figures(self) -> str:
        """Return phase, progress, loss, interim results and time left as one line."""
        return " · ".join([*self._progress_parts(), *self.interim_results(), *self._time_left()])

    def _progress_parts(self) -> list[str]:
        parts = [plain(self.phase, 40)]
        if self.total:
            parts.append(f"{count(self.done)} of {count(self.total)}")
        return parts + ([f"loss {self.loss:.4g}"] if self.loss is not None else [])

    def interim_results(self) -> list[str]:
        """Return Δ_LER of the shots so far with its (not sequentially valid) interval, the counts, and the e-value."""
        parts = []
        if self.counts is not None:
            parts += [text for text in [_delta(self.counts)] if text]
            parts.append(f"fixed {self.counts.fixed} · broken {self.counts.broken}")
        if self.evidence is not None:
            parts.append("e-value {:.3g} ({:.3g} needed)".format(*self.evidence))
        return parts

    def screen(self) -> RenderableType:
        """Return the round as a few lines of a screen."""
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(self.total, 1), completed=min(self.done, max(self.total, 1)), width=30),
            Text(" · ".join([*self._progress_parts(), *self._time_left()])),
            Text(sparkline(self.losses), style="cyan"),
        )
        head = Text(f"Round {self.number}  {plain(self.hypothesis, 200)}", style="bold")
        return Group(head, bar, *([Text("  " + " · ".join(self.interim_results()))] if self.interim_results() else []))

    def _time_left(self) -> list[str]:
        """Time left as reported by the event; otherwise estimated from the pace of this phase."""
        left = self.eta_s
        if left is None and 0 < self.done < self.total:
            left = (self.clock() - self.phase_began) * (self.total - self.done) / self.done
        return [f"{duration(left)} left"] if left is not None else []


def _is_failure(event: RoundEvent) -> bool:
    return isinstance(event, RoundMeasured) and event.metrics.status != "ok"


def _delta(counts: PairedCounts) -> str:
    """`Δ_LER = +4.80e-03 [+3.53e-03, +6.17e-03] (70 → 50 errors in 5k shots)`; "" if the counts are inconsistent."""
    from autoqec.qec.stats import paired_effect

    both_wrong = counts.errors_reference - counts.fixed
    if min(counts.fixed, counts.broken, both_wrong) < 0 or both_wrong + counts.broken != counts.errors_candidate:
        return ""
    if counts.shots < max(1, both_wrong + counts.fixed + counts.broken):
        return ""
    effect = paired_effect(counts)
    figures = f"Δ_LER = {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}]"
    errors = f"{counts.errors_reference} → {counts.errors_candidate} errors in {count(counts.shots)} shots"
    return f"{figures} ({errors})"
