"""Ideators of `bench-ideators` that the search's room does not know: the policy, language models, trained agents."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.cli import paths
from autoqec.errors import ContractError, InputError
from autoqec.ideators import tpe
from autoqec.ideators.hybrid import Hybrid
from autoqec.llm.config import LMConfig, get_lm_client, role_config
from autoqec.llm.errors import BudgetExceeded, LmError
from autoqec.store.files import load_env

if TYPE_CHECKING:
    from autoqec.llm.base import LanguageModel
    from autoqec.llm.ledger import Ledger

View = dict[str, Any]
Propose = Callable[[View], Any]

ASKING = ("llm", "hybrid:llm", "memory", "memoryless")
TRAINED = ("memory", "memoryless")


@dataclass
class Contestants:
    """Strategies by name for a table's env, and what their calls have cost. given_up: rounds left to the search."""

    env: str
    model: str | None = None
    checkpoint: Path | None = None
    max_usd: float | None = None
    max_tokens: int | None = None
    given_up: int = 0
    _ledger: Ledger | None = None

    def named(self, names: list[str]) -> dict[str, Propose]:
        """Those of `names` that are known here. InputError or LmAuth for one that lacks a model or a checkpoint."""
        found: dict[str, Propose] = {"policy": self._policy} if "policy" in names else {}
        asking = [name for name in names if name in ASKING]
        if not asking:
            if self.model or self.checkpoint or self.max_usd or self.max_tokens:
                raise InputError("no strategy asks a language model", where="--strategies", mend=f"add {ASKING[0]}")
            return found
        if any(name in TRAINED for name in asking) != (self.checkpoint is not None):
            what = "strategies `memory` and `memoryless` need a checkpoint, and no other takes one"
            raise InputError(what, where="--ideator-memory", mend="--strategies memory --reference memoryless")
        lm = self._client()
        return found | {name: self._asking(name, lm) for name in asking}

    def spent(self) -> float:
        """Dollars so far; NaN where a price is not known."""
        if self._ledger is None:
            return 0.0
        cost = self._ledger.spent.cost_usd
        return math.nan if cost is None else cost

    def _client(self) -> LanguageModel:
        from autoqec.llm.ledger import Ledger

        self._ledger = Ledger(max_usd=self.max_usd, max_tokens=self.max_tokens)
        config = role_config("ideator", LMConfig(model=self.model) if self.model else None)
        return get_lm_client(config, ledger=self._ledger)

    def _policy(self, view: View) -> Any:
        from autoqec.continual.environments import policy_ideator

        return policy_ideator.propose(self._seen(view))

    def _asking(self, name: str, lm: LanguageModel) -> Propose:
        role: Propose
        if name in TRAINED:
            from autoqec.continual.runtime import checkpoint_agents

            assert self.checkpoint is not None  # `named` asked for it
            role = checkpoint_agents.ideator(self.checkpoint, lm, forgetful=name == "memoryless")
        else:
            from autoqec.ideators.llm_roles import LlmIdeator

            role = LlmIdeator(lm)

        def answer(view: View) -> Any:
            try:
                said = role(self._seen(view))
            except BudgetExceeded:
                raise
            except (InputError, ContractError, LmError):
                said = None
            self.given_up += said is None
            return said

        # As in a run: the search takes a round that the model leaves.
        return Hybrid(answer) if name == "hybrid:llm" else lambda view: answer(view) or tpe.propose(view)

    def _seen(self, view: View) -> View:
        """The view of a run of that env: a model is told of the code, a policy of its size."""
        return view | {"env": load_env(paths.env_file(self.env))[0].dump()}
