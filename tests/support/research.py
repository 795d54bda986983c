"""A run's research tools that answer what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import Constraints
from autoqec.contracts.round import PairedCounts, Trial
from autoqec.contracts.views import CoderView
from autoqec.extensions.language_models.roles.record import RoundEvidence

COUNTS = PairedCounts(shots=5_000, errors_reference=80, errors_candidate=70, fixed=22, broken=12)


def trial(**more: Any) -> Trial:
    fields = {
        "key": "k", "kind": "screen", "round": 2, "round_attempt_id": "a", "share": 0.05, "status": "ok", "val": COUNTS,
        "n_params": 100, "flops_per_syndrome": 200, "train_shots": 6000, "seconds": 12.5, "at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return Trial.model_validate(fields | more)


def _small(dsl: PredecoderDSL) -> dict[str, int]:
    return {"n_params": 10, "flops_per_syndrome": 10}


@dataclass
class FakeResearch:
    """Implements `ResearchTools`; `asked` holds the arguments of every screen."""

    code_may_change: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    cost: Callable[[PredecoderDSL], Mapping[str, int]] = _small
    state: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    evidence: Callable[[int], RoundEvidence] = lambda number: RoundEvidence()
    diff: Callable[[str, str | None], str] = lambda branch, against: ""
    codes: Callable[[str | None], str] = lambda branch: "the same"
    modules: Mapping[str, str] = field(default_factory=dict)
    result: Trial = field(default_factory=trial)
    asked: list[tuple[dict[str, Any], tuple[str, ...], float]] = field(default_factory=list)

    def predict_cost(self, dsl: PredecoderDSL) -> Mapping[str, int]:
        return self.cost(dsl)

    def machine(self) -> dict[str, Any]:
        return self.state

    def budget_left(self) -> list[str]:
        return self.left

    def read_evidence(self, number: int) -> RoundEvidence:
        return self.evidence(number)

    def code_change(self, branch: str, against: str | None = None) -> str:
        return self.diff(branch, against)

    def code_of(self, branch: str | None) -> str:
        return self.codes(branch)

    def modules_of(self, branch: str) -> Mapping[str, str]:
        return self.modules

    def screen(self, config: dict[str, Any], fork_from: tuple[str, ...], share: float) -> Trial:
        self.asked.append((config, fork_from, share))
        return self.result

    def check(self, view: CoderView, config: dict[str, Any], modules: Mapping[str, str]) -> Trial:
        return self.result

    def find_duplicate(self, config: dict[str, Any], modules: Mapping[str, str]) -> int | None:
        return None
