"""Compared ideators outside the package `ideators`: the policy, language models and trained agents."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec import locate
from autoqec.contracts.views import IdeatorView
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.environments import policy_ideator
from autoqec.extensions.continual.runtime import checkpoint_agents
from autoqec.extensions.language_models import (
    scripted_policies as scripted_policies,  # registers scripted:expert and scripted:novice
)
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, role_config
from autoqec.extensions.language_models.clients.errors import BudgetExceededError, LlmError
from autoqec.extensions.language_models.clients.ledger import Ledger
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.ideators import tpe
from autoqec.ideators.hybrid import Hybrid
from autoqec.store.files import load_env
from benchmarks.ideators.simulation import FALLBACK

ProposeFn = Callable[[IdeatorView], Any]

LLM_IDEATORS = ("llm", "hybrid:llm", "memory", "memoryless")
CHECKPOINT_IDEATORS = ("memory", "memoryless")


@dataclass
class BenchIdeators:
    """Ideators by name for the env of a table, and the cost of their calls.

    Attributes:
        env: name of the env of the table.
        model: language model of the strategies that call one.
        checkpoint: trained agent of `memory` and `memoryless`.
        max_usd: limit of the cost of all calls, in dollars.
        max_tokens: limit of the tokens of all calls.
        fallback_rounds: rounds that TPE proposed because the model gave no usable answer.
    """

    env: str
    model: str | None = None
    checkpoint: Path | None = None
    max_usd: float | None = None
    max_tokens: int | None = None
    fallback_rounds: int = 0
    _ledger: Ledger | None = None

    def by_name(self, names: list[str]) -> dict[str, ProposeFn]:
        """Return the ideators of `names` that this module provides.

        Raises:
            UsageError: An option is missing, or applies to none of the strategies.
            LlmAuthError: There are no credentials for the model.
        """
        ideators: dict[str, ProposeFn] = {"policy": self._policy} if "policy" in names else {}
        llm_names = [name for name in names if name in LLM_IDEATORS]
        if not llm_names:
            if self.model or self.checkpoint or self.max_usd or self.max_tokens:
                raise UsageError(
                    "no strategy calls a language model: --model, --ideator-memory, usd and tokens do not apply",
                    location="--strategies",
                    hint=f"add {LLM_IDEATORS[0]}",
                )
            return ideators
        if any(name in CHECKPOINT_IDEATORS for name in llm_names) != (self.checkpoint is not None):
            message = "strategies `memory` and `memoryless` need a checkpoint; no other strategy uses one"
            raise UsageError(message, location="--ideator-memory", hint="--strategies memory --reference memoryless")
        lm = self._client()
        return ideators | {name: self._llm_ideator(name, lm) for name in llm_names}

    def spent_usd(self) -> float:
        """Return the cost so far in dollars; NaN if a price is unknown."""
        if self._ledger is None:
            return 0.0
        cost = self._ledger.totals.cost_usd
        return math.nan if cost is None else cost

    def _client(self) -> LanguageModel:
        self._ledger = Ledger(max_usd=self.max_usd, max_tokens=self.max_tokens)
        config = role_config("ideator", LMConfig(model=self.model) if self.model else None)
        return get_lm_client(config, ledger=self._ledger)

    def _policy(self, view: IdeatorView) -> Any:
        return policy_ideator.propose(self._with_env(view))

    def _llm_ideator(self, name: str, lm: LanguageModel) -> ProposeFn:
        role: ProposeFn
        if name in CHECKPOINT_IDEATORS:
            assert self.checkpoint is not None  # by_name checked it
            role = checkpoint_agents.ideator(self.checkpoint, lm, without_memory=name == "memoryless")
        else:
            role = LlmIdeator(lm)

        def answer(view: IdeatorView) -> Any:
            try:
                proposal = role(self._with_env(view))
            except BudgetExceededError:
                raise
            except (UsageError, ContractError, LlmError) as error:
                if isinstance(error, LlmError) and error.is_permanent:
                    raise
                proposal = None
            self.fallback_rounds += proposal is None
            return proposal

        def answer_or_search(view: IdeatorView) -> Any:
            """Propose as in a run: by TPE if the model gives no usable answer."""
            proposal, search = answer(view), tpe.propose(view)
            return proposal or search.model_copy(update={"source": f"{FALLBACK} {search.source}"})

        return Hybrid(answer) if name == "hybrid:llm" else answer_or_search

    def _with_env(self, view: IdeatorView) -> IdeatorView:
        """Add the env to the view: prompts describe its code, the policy reads its size."""
        return view.model_copy(update={"env": load_env(locate.env_file(self.env))[0]})
