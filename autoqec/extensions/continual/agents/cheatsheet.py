"""DynamicCheatsheetAgent: answers with a cheatsheet and similar examples, runs code, and has the sheet curated."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, cast

from pydantic import Field, SerializeAsAny, model_validator

from autoqec.errors import AutoqecError, UsageError
from autoqec.extensions.continual.agents.base import MemoryAgent, MemoryAgentConfig, fill_template, last_k
from autoqec.extensions.continual.memory.base import Entry, ExperienceEntry, MemoryModuleConfig
from autoqec.extensions.continual.memory.modules import HybridConfig, HybridMemory, Memory, parse_curation
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.system import sandbox
from autoqec.system.process import child

EXECUTE_FLAG = "EXECUTE CODE!"
_REQUEST = re.compile(r"(```(?:python)?[ \t]*\n(.*?)```)\s*" + re.escape(EXECUTE_FLAG), re.DOTALL)
MAX_OUTPUT_CHARS = 10_000

CodeRunner = Callable[[str, float], str]


class CodeExecutionService:
    """Replaces the flag after a fenced code block by the output of that block.

    Args:
        run: (code, seconds) -> output, normally `run_sandboxed`. None disables execution, and text stays as it is.
        timeout_s: Time limit per block in seconds.
    """

    def __init__(self, run: CodeRunner | None, *, timeout_s: float = 5.0) -> None:
        self._run, self.timeout_s = run, timeout_s

    def run(self, code: str, timeout: float) -> str:
        """Return the output of `code`, or one line with the reason why there is none."""
        if self._run is None:
            return "code execution is switched off"
        return self._run(code, timeout)[:MAX_OUTPUT_CHARS]

    def execute_blocks(self, text: str) -> str:
        """Return `text` with every flagged block followed by its output."""
        if self._run is None:
            return text

        def executed(match: re.Match[str]) -> str:
            return f"{match[1]}\nOutput:\n```\n{self.run(match[2], self.timeout_s)}\n```"

        return _REQUEST.sub(executed, text)


def run_sandboxed(code: str, timeout: float) -> str:
    """Run Python code in the sandbox, without network and with no files but its own directory.

    Args:
        code: Python source.
        timeout: Seconds after which the process and its descendants are killed.

    Returns:
        What the code printed, with a note on the exit status or the limit that ended it.

    Raises:
        UsageError: If no sandbox backend works on this machine.
    """
    if sandbox.probe() == "none":
        raise UsageError("no sandbox runs here", location="code execution", hint="autoqec doctor")
    with tempfile.TemporaryDirectory(prefix="autoqec-code-") as directory:
        work, log = Path(directory, "work"), Path(directory, "output")
        work.mkdir(mode=0o777)
        (work / "main.py").write_text(code, encoding="utf-8")
        wrapped = sandbox.wrap([sys.executable, "-I", "main.py"], sandbox.SandboxPolicy(writable=(work,), tmp_mb=16))
        limits = child.Limits(wallclock_s=timeout, memory_gb=1.0, disk_mb=16, disk_dir=work, processes=64)
        result = child.run(wrapped.argv, cwd=work, env=wrapped.env, limits=limits, stdout=log)
        with log.open("rb") as stream:
            output = stream.read(4 * MAX_OUTPUT_CHARS).decode("utf-8", errors="replace").strip()
    if result.limit_broken is not None:
        return f"{output}\nkilled: {result.limit_broken}".strip()
    return output if result.returncode == 0 else f"{output}\nexit status {result.returncode}".strip()


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
