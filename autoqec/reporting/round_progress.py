"""Progress of one running round, built from its events: phase, loss, and interim results of its shots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autoqec.reporting.text import count, duration, plain, sparkline

COUNTS = ("shots", "errors_reference", "errors_candidate", "fixed", "broken")
TRACKED_FIELDS = (*COUNTS, "e_value", "threshold")


@dataclass
class RoundProgress:
    """State of a running round; `latest` holds the interim counts of the current phase."""

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
    latest: dict[str, Any] = field(default_factory=dict)
    last_printed: float = float("-inf")
    failed: bool = False

    def update_from(self, payload: dict[str, Any]) -> None:
        """Update from the payload of an event; values of unexpected types are ignored."""
        phase = payload.get("phase")
        if isinstance(phase, str) and phase != self.phase:
            self.phase, self.phase_began, self.last_printed = phase, self.clock(), float("-inf")
            self.done, self.total, self.latest, self.losses = 0, 0, {}, []
        self.failed = self.failed or payload.get("status") not in (None, "ok")
        self.hypothesis = str(payload.get("hypothesis") or self.hypothesis)
        self.branch = str(payload.get("branch") or self.branch)
        for done, total in (("step", "steps"), ("shots", "budget")):
            if _is_count(payload.get(done)):
                self.done = payload[done]
                self.total = payload[total] if _is_count(payload.get(total)) else 0
        self.eta_s = payload["eta_s"] if _is_finite_number(payload.get("eta_s")) else None
        self.loss = (
            payload["loss"] if isinstance(payload.get("loss"), float) and _is_finite_number(payload["loss"]) else None
        )
        if self.loss is not None:
            self.losses.append(self.loss)
        self.latest |= {name: payload[name] for name in TRACKED_FIELDS if payload.get(name) is not None}

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
        values = {name: self.latest.get(name) for name in COUNTS}
        parts = []
        if all(_is_count(values[name]) for name in ("shots", "fixed", "broken")):
            parts += [text for text in [_delta(values)] if text]
            parts.append(f"fixed {values['fixed']} · broken {values['broken']}")
        e_value, threshold = self.latest.get("e_value"), self.latest.get("threshold")
        if isinstance(e_value, float) and isinstance(threshold, float):
            parts.append(f"e-value {e_value:.3g} of {threshold:.3g}")
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


def _delta(values: dict[str, Any]) -> str:
    """`Δ_LER = +4.80e-03 [+3.53e-03, +6.17e-03] (70 → 50 errors in 5k shots)`; "" if the counts are inconsistent."""
    from autoqec.contracts.verdict import PairedCounts
    from autoqec.qec.stats import paired_effect

    before, after = values["errors_reference"], values["errors_candidate"]
    known = _is_count(before) and _is_count(after)
    # Δ and its interval need the discordant shots only; error counts are shown if the event has them.
    errors = {"errors_reference": before, "errors_candidate": after} if known else {}
    required_errors = {"errors_reference": values["fixed"], "errors_candidate": values["broken"]}
    counts = PairedCounts.model_validate({**values, **required_errors, **errors})
    both_wrong = counts.errors_reference - counts.fixed
    if min(counts.fixed, counts.broken, both_wrong) < 0 or both_wrong + counts.broken != counts.errors_candidate:
        return ""
    if counts.shots < max(1, both_wrong + counts.fixed + counts.broken):
        return ""
    effect = paired_effect(counts)
    figures = f"Δ_LER = {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}]"
    return f"{figures} ({before} → {after} errors in {count(values['shots'])} shots)" if known else figures


def _is_count(value: Any) -> bool:
    """Whether it is an integer of bounded size: an untrusted process may write any number of digits."""
    return isinstance(value, int) and _is_finite_number(value)


def _is_finite_number(value: Any) -> bool:
    """Whether it is a number that is neither NaN nor huge."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
