"""Progress events: one frozen model per kind, and the callback that receives them.

`payload()` holds the keys that `--json` prints beside `event`: those that the producer set. A default is for readers of
the model only, such as the phase of the verifier's events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import PairedCounts, RoundMetrics, RoundStatus


class Event(Contract):
    """An event of a run. Kinds that are `frequent` are logged at level DEBUG."""

    frequent: ClassVar[bool] = False

    kind: str = Field(description="name of the event")

    def payload(self) -> dict[str, Any]:
        """Return the keys and plain values of the event, without its kind."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"kind"})


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event: the callback of callers that do not listen."""


class RunStarted(Event):
    """A new run was created; only logged."""

    kind: Literal["run_started"] = "run_started"
    run_id: str = Field(description="identifier of the run")
    env: str = Field(description="name of the env")
    profile: str = Field(description="name of the profile")
    seed: int = Field(description="seed of the search")


class RunResumed(Event):
    """A run continues; only logged."""

    kind: Literal["run_resumed"] = "run_resumed"
    run_id: str = Field(description="identifier of the run")
    notes: tuple[str, ...] = Field(default=(), description="changes since the last start that do not prevent a resume")


class RunStopped(Event):
    """No further round begins; only logged."""

    kind: Literal["run_stopped"] = "run_stopped"
    why: str = Field(description="limit or request that stopped the run")


class ShotsRead(Event):
    """Progress of reading recorded shots: hashed, compared with their model, copied, decoded, or skipped."""

    frequent: ClassVar[bool] = True

    kind: Literal["shots_read"] = "shots_read"
    what: str = Field(description="what is done, with the file or block")
    done: int = Field(description="bytes or shots so far")
    total: int | None = optional("bytes or shots in all; null: not known")


class RunOpened(Event):
    """A run was started or resumed, so its directory is known."""

    kind: Literal["run_opened"] = "run_opened"
    run_id: str = Field(description="identifier of the run")
    root: str = Field(description="run directory")


class RunRecovered(Event):
    """Recovery changed something. `actions` are its steps in the order in which they were applied."""

    kind: Literal["recovered"] = "recovered"
    actions: tuple[dict[str, Any], ...] = Field(description="executed actions, in order")


class RoundEvent(Event):
    """An event of one round. `phase` is what the round does from now on; None: unchanged."""

    round: int = Field(description="number of the round")
    phase: str | None = optional("current phase; null: unchanged")


class RoundStarted(RoundEvent):
    """A round was begun, or its SLURM job was found again on resume (`job`)."""

    kind: Literal["round_begun"] = "round_begun"
    job: str | None = optional("number of the SLURM job; null: no job")


class RoundPlanned(RoundEvent):
    """The ideator's proposal was recorded."""

    kind: Literal["planned"] = "planned"
    hypothesis: str | None = Field(description="what the Ideator expects to help")
    branch: str | None = optional("branch of the round")


class RoundWaiting(RoundEvent):
    """The round waits for a free slot."""

    kind: Literal["waiting"] = "waiting"


class JobReported(RoundEvent):
    """SLURM reports another state of the round's job."""

    kind: Literal["job"] = "job"
    job: str | None = Field(description="number of the SLURM job")
    state: str = Field(description="state in SLURM's terms")
    why: str = Field(description="SLURM's reason")


class Progress(RoundEvent):
    """Progress of a phase: optimizer steps in training, otherwise shots out of `budget`; unknown values are None."""

    frequent: ClassVar[bool] = True

    step: int | None = optional("optimizer steps so far")
    steps: int | None = optional("optimizer steps in total")
    loss: float | None = optional("latest training loss")
    eta_s: float | None = optional("seconds left")
    budget: int | None = optional("shots at most")
    shots: int | None = optional("shots so far")
    errors_reference: int | None = optional("errors of the baseline decoder")
    errors_candidate: int | None = optional("errors of the candidate")
    fixed: int | None = optional("shots that only the candidate decodes correctly")
    broken: int | None = optional("shots that only the baseline decoder decodes correctly")
    e_value: float | None = optional("evidence so far")
    threshold: float | None = optional("e-value at which the null is rejected")

    @property
    def counts(self) -> PairedCounts | None:
        """The paired counts so far; None unless all are known."""
        counts = {name: getattr(self, name) for name in PairedCounts.model_fields}
        return None if None in counts.values() else PairedCounts(**counts)


class TrainingProgress(Progress):
    """Progress of the child process that trains and validates."""

    kind: Literal["training"] = "training"


class SequentialTestProgress(Progress):
    """Progress of the verifier's sequential test."""

    kind: Literal["judge_test"] = "judge_test"
    phase: str | None = "verification"


class EffectProgress(Progress):
    """Progress of the second draw, on which the verifier measures the gain."""

    kind: Literal["judge_effect"] = "judge_effect"


class LiveProgress(Progress):
    """The latest event of a round as live.json holds it, reduced to figures."""

    kind: str = "progress"
    p: float | None = optional("physical error rate of the shots")


class RoundMeasured(RoundEvent):
    """The Runner finished. The payload is flat: the keys of the metrics are beside the round."""

    kind: Literal["measured"] = "measured"
    metrics: RoundMetrics = Field(description="content of metrics.json")

    def payload(self) -> dict[str, Any]:
        """Return round, phase and every metric."""
        about = self.model_dump(mode="json", exclude_unset=True, exclude={"kind", "metrics"})
        return {**about, **self.metrics.dump()}


class RoundEnded(RoundEvent):
    """The round ended before it could be measured."""

    kind: Literal["measured"] = "measured"
    status: RoundStatus = Field(description="status of the row")
    status_reason: str | None = Field(description="why the round ended")


class RoundNominated(RoundEvent):
    """The Analyst's nomination."""

    kind: Literal["nominated"] = "nominated"
    verdict: Literal["candidate", "ignore"] = Field(description="the nomination")
    summary_1line: str = Field(description="the Analyst's summary")


class VerificationStarted(RoundEvent):
    """The verifier begins."""

    kind: Literal["judging"] = "judging"


class PointMeasured(RoundEvent):
    """The verifier measured the gain at another physical error rate `p`."""

    frequent: ClassVar[bool] = True

    kind: Literal["judge_point"] = "judge_point"
    phase: str | None = "verification"
    p: float = Field(description="physical error rate of the shots")
    relative: float | None = Field(description="relative reduction of the logical error rate; null: no errors")


class CompositionCompared(RoundEvent):
    """A composition was compared with its parents."""

    frequent: ClassVar[bool] = True

    kind: Literal["judge_composition"] = "judge_composition"
    phase: str | None = "verification"
    verdict: str = Field(description="synergy, additive or interference")
    evidence: str = Field(description="the interaction with its interval")


class VerdictReached(RoundEvent):
    """The verifier's verdict and its reasons."""

    kind: Literal["judge_verdict"] = "judge_verdict"
    phase: str | None = "verification"
    verdict: str = Field(description="the verdict")
    reasons: tuple[str, ...] = Field(description="its reasons")


class RoundRecorded(RoundEvent):
    """The round's row was appended to history.jsonl."""

    kind: Literal["round_recorded"] = "round_recorded"
    row: HistoryRow = Field(description="the row of history.jsonl")

    def payload(self) -> dict[str, Any]:
        """Return round, phase and the row as history.jsonl holds it."""
        about = self.model_dump(mode="json", exclude_unset=True, exclude={"kind", "row"})
        return {**about, "row": self.row.dump()}


class LlmEvent(Event):
    """An event of a role that asks a language model."""

    role: str = Field(description="role that calls the model")


class LlmCalled(LlmEvent):
    """One call of the model and what it cost."""

    kind: Literal["lm_call"] = "lm_call"
    model: str = Field(description="name of the model")
    usage: dict[str, Any] = Field(description="token counts by kind")
    cost_usd: float | None = Field(description="cost in US dollars; null: no known price")
    duration_ms: int = Field(description="duration in milliseconds")


class LlmToolUsed(LlmEvent):
    """The model called a tool. `good`: the tool gave a result."""

    kind: Literal["lm_tool"] = "lm_tool"
    tool: str = Field(description="name of the tool")
    good: bool = Field(description="whether the tool returned a result")


class LlmRetried(LlmEvent):
    """The answer was not usable; the model is asked once more."""

    kind: Literal["lm_retry"] = "lm_retry"
    error: str = Field(description="class of the error")
    what: str = Field(description="its message")


class LlmGivenUp(LlmEvent):
    """The role continues without its model in this round."""

    kind: Literal["lm_given_up"] = "lm_given_up"
    error: str = Field(description="class of the error")
    what: str = Field(description="its message")


class LlmUnusable(LlmEvent):
    """No call of this role's model can succeed: wrong key, unknown model or no credit. The run calls it no more."""

    kind: Literal["lm_unusable"] = "lm_unusable"
    model: str = Field(description="name of the model")
    what: str = Field(description="what the provider said")


class LlmBudgetExhausted(Event):
    """No further call and no further round."""

    kind: Literal["lm_budget"] = "lm_budget"
    what: str = Field(description="the limit that was reached")
