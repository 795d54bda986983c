"""DynamicCheatsheetAgent: answers with a cheatsheet and similar examples, then has the cheatsheet curated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic import Field, SerializeAsAny, model_validator

from autoqec.errors import AutoqecError, UsageError
from autoqec.extensions.continual.agents.base import fill_template
from autoqec.extensions.continual.agents.code_execution import CodeExecutionService, CodeRunner
from autoqec.extensions.continual.agents.memory_agent import MemoryAgent, MemoryAgentConfig, last_k
from autoqec.extensions.continual.memory.base import MemoryModuleConfig
from autoqec.extensions.continual.memory.cheatsheet import parse_curation
from autoqec.extensions.continual.memory.entries import Entry, ExperienceEntry
from autoqec.extensions.continual.memory.factory import Memory
from autoqec.extensions.continual.memory.hybrid import HybridConfig, HybridMemory
from autoqec.extensions.language_models.clients.base import LanguageModel

GENERATOR_TEMPLATE = """Cheatsheet:
{cheatsheet}

Like cases:
{examples}

Recent cases:
{history}

Q: {question}"""

CHEATSHEET_TEMPLATE = """The cheatsheet so far:
{cheatsheet}

The last question:
{question}

The answer given:
{answer}

Keep what stays useful, add what was learned. Reply with the whole new sheet as <cheatsheet>…</cheatsheet>, or with
changes as <edits>[{"op": "add", "text": "…"}, {"op": "replace", "old": "…", "new": "…"}, \
{"op": "remove", "text": "…"}]</edits>; `old` and `text` of a removal are whole lines of the sheet."""

COMPACT_TEMPLATE = """The cheatsheet is too long:
{cheatsheet}

Say the same in fewer than {limit} characters. Reply with <cheatsheet>…</cheatsheet>."""

CONTINUE_TEMPLATE = """{prompt}

Your work so far, with the output of your code:
{work}

Continue from here, and end with the final answer."""

CURATOR = "You curate a cheatsheet that helps with the questions to come."


class DynamicCheatsheetAgentConfig(MemoryAgentConfig):
    """Config of `DynamicCheatsheetAgent`."""

    type: str = "dynamic_cheatsheet_agent"
    memory_config: SerializeAsAny[MemoryModuleConfig] = HybridConfig()
    use_retrieval: bool = True
    retrieve_top_k: int = Field(default=3, ge=0)
    use_code_execution: bool = False
    code_timeout_sec: float = Field(default=5.0, gt=0, le=600)
    max_generation_rounds: int = Field(
        default=1, ge=1, le=10, description="calls per answer: after one whose code was run, the model sees the output"
    )
    generator_template: str | None = Field(
        default=None, description="with {cheatsheet}, {examples}, {history}, {question}; null: the default"
    )
    cheatsheet_template: str | None = Field(
        default=None, description="with {cheatsheet}, {question}, {answer}; null: the default"
    )
    compact_above: int | None = Field(
        default=None, ge=1, description="characters beyond which the sheet is shortened at the end of an episode"
    )

    @model_validator(mode="after")
    def _check_rounds(self) -> DynamicCheatsheetAgentConfig:
        if self.max_generation_rounds > 1 and not self.use_code_execution:
            raise ValueError("`max_generation_rounds` above 1 needs `use_code_execution`")
        return self


class DynamicCheatsheetAgent(MemoryAgent[DynamicCheatsheetAgentConfig]):
    """Agent with two calls per step in training (answer, curation) and one in evaluation.

    With code execution an answer may take several calls. A failed curation keeps the previous cheatsheet.
    """

    supported_memories: ClassVar[tuple[str, ...]] = ("hybrid",)

    def __init__(
        self,
        config: DynamicCheatsheetAgentConfig,
        lm: LanguageModel,
        *,
        memory: Memory | None = None,
        run_code: CodeRunner | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        super().__init__(config, lm, memory=memory, logger=logger)
        if config.use_code_execution and run_code is None:
            raise UsageError("code execution is not available", location="use_code_execution", hint="set it to false")
        self.code = CodeExecutionService(
            run_code if config.use_code_execution else None, timeout_s=config.code_timeout_sec
        )

    @property
    def hybrid(self) -> HybridMemory:
        """The agent's memory with its concrete type."""
        return cast(HybridMemory, self.memory)

    def act(self, obs: str) -> str:
        """Answer an observation and, in training mode, curate the cheatsheet."""
        user = self.build_user_prompt(obs, self.history(), self.config.history_k)
        answer = self._generate(user)
        if self.training:
            template = self.config.cheatsheet_template or CHEATSHEET_TEMPLATE
            self._curate(fill_template(template, cheatsheet=self._cheatsheet_text(), question=obs, answer=answer))
        return self.remember(obs, answer)

    def _generate(self, prompt: str) -> str:
        """Return the answer of as many calls as run code, at most `max_generation_rounds`."""
        work, user = "", prompt
        for _ in range(self.config.max_generation_rounds):
            reply = self.call_model("actions", self.build_system_prompt(), user)
            executed = self.code.execute_blocks(reply)
            work = f"{work}\n\n{executed}" if work else executed
            if executed == reply:
                break
            user = fill_template(CONTINUE_TEMPLATE, prompt=prompt, work=work)
        return work

    def history(self) -> list[Entry]:
        """Return notes, then steps; the cheatsheet has its own place in the prompt."""
        hybrid = self.hybrid
        return [*hybrid.notes.recall(), *hybrid.experiences.recall(), *self._episode_entries]

    def build_user_prompt(self, obs: str, history: Sequence[Entry], k: int | None) -> str:
        """Fill the generator template with cheatsheet, similar examples, recent entries and the question."""
        examples: list[ExperienceEntry] = []
        if self.config.use_retrieval:
            examples = self.hybrid.retrieve_examples(obs, self.config.retrieve_top_k)
        recent = [entry for entry in last_k(history, k) if entry not in examples]
        return fill_template(
            self.config.generator_template or GENERATOR_TEMPLATE,
            cheatsheet=self._cheatsheet_text(),
            examples=_lines(examples),
            history=_lines(recent),
            question=obs,
        )

    def end_episode(self) -> None:
        """Shorten the cheatsheet if it exceeds `compact_above` characters."""
        limit = self.config.compact_above
        if self.training and limit is not None and len(self.hybrid.get_cheatsheet()) > limit:
            self._curate(fill_template(COMPACT_TEMPLATE, cheatsheet=self._cheatsheet_text(), limit=str(limit)))

    def _curate(self, user: str) -> None:
        """Request a new cheatsheet; the old one is kept if the call fails or the reply contains none."""
        try:
            sheet = parse_curation(self.call_model("reflections", CURATOR, user), self.hybrid.get_cheatsheet())
            self.hybrid.set_cheatsheet(sheet)
        except AutoqecError as error:
            self.logger.warning("the cheatsheet is unchanged: %s", error)
        except Exception as error:
            self.logger.warning("the cheatsheet is unchanged: %s: %s", type(error).__name__, error)

    def _cheatsheet_text(self) -> str:
        return self.hybrid.get_cheatsheet() or "(empty)"


def _lines(entries: Sequence[Entry]) -> str:
    return "\n".join(entry.line() for entry in entries) or "(none)"
