"""Start, end and phase durations of a round."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from autoqec.contracts.base import Contract

UtcTime = Annotated[AwareDatetime, AfterValidator(lambda time: time.astimezone(UTC))]


class Timing(Contract):
    """Start, end and duration of the phases of one round; None: not recorded, as in rows of earlier versions."""

    started_at: UtcTime | None = Field(default=None, description="when the round began")
    finished_at: UtcTime | None = Field(default=None, description="when the round ended")
    proposal_wallclock_s: float | None = Field(default=None, description="seconds until Ideator and Coder had answered")
    setup_wallclock_s: float | None = Field(
        default=None, description="seconds to create the branch and to wait for a free slot"
    )
    train_wallclock_s: float | None = Field(default=None, description="seconds of training")
    eval_wallclock_s: float | None = Field(default=None, description="seconds of the measurement on validation shots")
    verify_wallclock_s: float | None = Field(default=None, description="seconds of the verification")

    @property
    def phases(self) -> list[tuple[str, float]]:
        """Return name and seconds of each recorded phase, in order."""
        known = [
            ("proposal", self.proposal_wallclock_s),
            ("setup", self.setup_wallclock_s),
            ("training", self.train_wallclock_s),
            ("evaluation", self.eval_wallclock_s),
            ("verification", self.verify_wallclock_s),
        ]
        return [(name, seconds) for name, seconds in known if seconds is not None]

    def describe(self) -> str:
        """Return a text: `2026-01-02 03:04:05 UTC, 42.0 s: proposal 0.5 s, training 40.0 s`; empty without a start."""
        if self.started_at is None:
            return ""
        total = seconds_between(self.started_at, self.finished_at)
        text = f"{self.started_at:%Y-%m-%d %H:%M:%S} UTC"
        text += f", {total:.1f} s" if total is not None else ""
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.phases)
        return f"{text}: {phases}" if phases else text


def utc_now() -> datetime:
    """Return the current time in UTC, to the millisecond."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from `start` to `end`; None if either is unknown, 0 if clocks disagree about their order."""
    if start is None or end is None:
        return None
    return max(0.0, round((end - start).total_seconds(), 3))
