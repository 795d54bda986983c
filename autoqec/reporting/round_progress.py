"""A round that is running, as its events told it: how far it is, its loss, what its shots say so far."""

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
HEARD = (*COUNTS, "e_value", "threshold")


@dataclass
class RoundNow:
    """What is known of the round; `pairs` are the counts of the decoding under way, `clock` says the seconds."""

    number: int
    clock: Callable[[], float]
    phase: str = "thinking"
    hypothesis: str = ""
    branch: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None
    phase_began: float = 0.0
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    heard: dict[str, Any] = field(default_factory=dict)
    last_line: float = float("-inf")
    failed: bool = False

    def absorb(self, payload: dict[str, Any]) -> None:
        """Take an event's payload, by its keys; odd values are passed over."""
        phase = payload.get("phase")
        if isinstance(phase, str) and phase != self.phase:
            self.phase, self.phase_began, self.last_line = phase, self.clock(), float("-inf")
            self.done, self.total, self.heard, self.losses = 0, 0, {}, []
        self.failed = self.failed or payload.get("status") not in (None, "ok")
        self.hypothesis = str(payload.get("hypothesis") or self.hypothesis)
        self.branch = str(payload.get("branch") or self.branch)
        for done, total in (("step", "steps"), ("shots", "budget")):
            if _whole(payload.get(done)):
                self.done = payload[done]
                self.total = payload[total] if _whole(payload.get(total)) else 0
        self.eta_s = payload["eta_s"] if _held(payload.get("eta_s")) else None
        self.loss = payload["loss"] if isinstance(payload.get("loss"), float) and _held(payload["loss"]) else None
        if self.loss is not None:
            self.losses.append(self.loss)
        self.heard |= {name: payload[name] for name in HEARD if payload.get(name) is not None}

    def figures(self) -> str:
        """Phase, how far, loss or what its shots say so far, time left."""
        return " · ".join([*self._how_far(), *self.so_far(), *self._time_left()])

    def _how_far(self) -> list[str]:
        parts = [plain(self.phase, 40)]
        if self.total:
            parts.append(f"{count(self.done)} of {count(self.total)}")
        return parts + ([f"loss {self.loss:.4g}"] if self.loss is not None else [])

    def so_far(self) -> list[str]:
        """Δ_LER of the shots that are in, with its interval at this look, the counts behind it, and the e-value."""
        found = {name: self.heard.get(name) for name in COUNTS}
        parts = []
        if all(_whole(found[name]) for name in ("shots", "fixed", "broken")):
            parts += [text for text in [_delta(found)] if text]
            parts.append(f"fixed {found['fixed']} · broken {found['broken']}")
        e_value, threshold = self.heard.get("e_value"), self.heard.get("threshold")
        if isinstance(e_value, float) and isinstance(threshold, float):
            parts.append(f"e-value {e_value:.3g} of {threshold:.3g}")
        return parts

    def screen(self) -> RenderableType:
        """The round as a few lines of a screen."""
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(self.total, 1), completed=min(self.done, max(self.total, 1)), width=30),
            Text(" · ".join([*self._how_far(), *self._time_left()])),
            Text(sparkline(self.losses), style="cyan"),
        )
        head = Text(f"Round {self.number}  {plain(self.hypothesis, 200)}", style="bold")
        return Group(head, bar, *([Text("  " + " · ".join(self.so_far()))] if self.so_far() else []))

    def _time_left(self) -> list[str]:
        """What the work itself says; else the pace of this phase so far."""
        left = self.eta_s
        if left is None and 0 < self.done < self.total:
            left = (self.clock() - self.phase_began) * (self.total - self.done) / self.done
        return [f"{duration(left)} left"] if left is not None else []


def _delta(found: dict[str, Any]) -> str:
    """`Δ_LER = +4.80e-03 [+3.53e-03, +6.17e-03] (70 → 50 errors in 5k shots)`; "" where the counts contradict."""
    from autoqec.contracts.verdict import PairedCounts
    from autoqec.qec.stats import paired

    before, after = found["errors_reference"], found["errors_candidate"]
    known = _whole(before) and _whole(after)
    # Δ and its interval need the discordant shots alone; the errors stand beside them where they were told.
    errors = {"errors_reference": before, "errors_candidate": after} if known else {}
    least = {"errors_reference": found["fixed"], "errors_candidate": found["broken"]}
    counts = PairedCounts.model_validate({**found, **least, **errors})
    both = counts.errors_reference - counts.fixed
    if min(counts.fixed, counts.broken, both) < 0 or both + counts.broken != counts.errors_candidate:
        return ""
    if counts.shots < max(1, both + counts.fixed + counts.broken):
        return ""
    effect = paired(counts)
    figures = f"Δ_LER = {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}]"
    return f"{figures} ({before} → {after} errors in {count(found['shots'])} shots)" if known else figures


def _whole(value: Any) -> bool:
    """Whether it is a count that arithmetic can hold: a child may write any number of digits."""
    return isinstance(value, int) and _held(value)


def _held(value: Any) -> bool:
    """Whether it is a number, and neither NaN nor too large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
