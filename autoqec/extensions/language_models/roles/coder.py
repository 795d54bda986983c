"""The Coder through a language model: writes config and code of a proposal, and repairs what does not build."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.messages import CoderResponse, FileEdit
from autoqec.contracts.views import CoderView
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request
from autoqec.extensions.language_models.contracts import CoderAnswer
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.data_blocks import data_block, sanitize
from autoqec.extensions.language_models.roles.role import OnTurn, Role, validated
from autoqec.extensions.language_models.roles.tools import ResearchTools
from autoqec.ideators import coder
from autoqec.ideators.proposal_checks import check_cost, require_build

MAX_SOURCE_CHARS = 60_000  # of source code shown to the Coder
MAX_REPAIRS = 2


class LlmCoder(Role):
    """Turns the proposal of a `CoderView` into config and edits.

    The view has the text of the editable modules if the model may edit code.

    Args:
        lm: The language model.
        tools: What the run lets it try out; None: no run. If code may change, config and code are built in the sandbox,
            and an answer that fails is sent back with the traceback, at most `MAX_REPAIRS` times.
        on_event: Receives every event.
        on_turn: Receives every turn of the conversation.
    """

    name = "coder"

    def __init__(
        self,
        lm: LanguageModel,
        tools: ResearchTools | None = None,
        *,
        on_event: OnEvent = ignore,
        on_turn: OnTurn | None = None,
    ) -> None:
        super().__init__(lm, on_event=on_event, on_turn=on_turn)
        self._tools = tools

    def __call__(self, view: CoderView) -> CoderResponse | None:
        """Write config and edits; None without a usable answer."""
        if view.compose_mode == "pure":
            return coder.code(view)  # git merges the branches: there is nothing to write
        retries = MAX_REPAIRS if view.modules else 1
        return self._request_with_retry(
            self.request(view), lambda answer: self._response(view, answer), retries=retries
        )

    def request(self, view: CoderView) -> Request:
        """Return the prompt for a view, with as much of the editable code as fits."""
        task: dict[str, Any] = {"hypothesis": sanitize(view.hypothesis, 400), "proposal": view.proposal}
        if view.code_change:
            task["change of the code"] = sanitize(view.code_change, 2000)
        blocks = [data_block("task", json.dumps(task, indent=1, sort_keys=True))]
        remaining = MAX_SOURCE_CHARS
        for name, text in sorted(view.modules.items()):
            if name.endswith(".py") and len(text) <= remaining:
                blocks.append(data_block(sanitize(name, 120), text))
                remaining -= len(text)
        turn = "\n".join([*blocks, f"Write the config{', and the edits if it needs any' if view.modules else ''}."])
        prompt = prompts.coder_prompt(code_may_change=bool(view.modules), is_built=_is_built(view))
        return Request(
            role=self.name,
            system=(prompt, *([_custom_fn_protocol()] if view.modules else [])),
            messages=(Message(role="user", content=turn),),
            output=CoderAnswer,
            max_tokens=32_000 if view.modules else 8192,
        )

    def _response(self, view: CoderView, answer: CoderAnswer) -> CoderResponse:
        """Return the answer with the config file written from its config; its edits are Python files that parse."""
        default_response = coder.code(view.model_copy(update={"proposal": answer.dsl_config.config()}))
        if answer.edits and not view.modules:
            raise ContractError("this run does not allow edits of code", location="edits")
        for edit in answer.edits:
            _check_edit(edit)
        paths = [edit.path for edit in answer.edits]
        if len(set(paths)) != len(paths):
            raise ContractError("a file is edited twice", location="edits")
        if self._tools is not None and not view.modules:
            dsl = PredecoderDSL.model_validate(default_response.dsl_config)
            check_cost(dsl, self._tools.predict_cost, self._tools.constraints)
        if self._tools is not None and _is_built(view):
            _check_code(self._tools, view, default_response.dsl_config, answer.edits)
        return validated(
            CoderResponse,
            dsl_config=default_response.dsl_config,
            edits=(*default_response.edits, *answer.edits),
            commit_message=sanitize(answer.commit_message, 400),
        )


def _check_code(tools: ResearchTools, view: CoderView, config: dict[str, Any], edits: tuple[FileEdit, ...]) -> None:
    """Raise ContractError if config and code were measured before, or BuildFailedError if they do not build."""
    modules = {**view.modules, **{edit.path: edit.text for edit in edits}}
    duplicate = tools.find_duplicate(config, modules)
    if duplicate is not None:
        message = f"config and code are those of round {duplicate}; make the change of code that the task asks for"
        raise ContractError(message, location="edits")
    require_build(tools.check(view, config, modules))


def _is_built(view: CoderView) -> bool:
    """Return whether config and code are built before the round: what git makes of several parents is not known yet."""
    return bool(view.modules) and len(view.fork_from) < 2


def _custom_fn_protocol() -> str:
    from autoqec.decoders import custom_fn  # loads torch

    imports, classes = ", ".join(sorted(custom_fn.ALLOWED_IMPORTS)), ", ".join(custom_fn.CUSTOM_CLASSES)
    return (
        f"{custom_fn.__doc__}\nThe lint of {custom_fn.FILE} allows imports, functions and classes at module level "
        f"({classes} are those that a config can select) and these imports alone: {imports}."
    )


def _check_edit(edit: FileEdit) -> None:
    from autoqec.decoders import custom_fn

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}\.py", edit.path):
        raise ContractError(f"{edit.path!r} is not a Python file of the editable modules", location="edits.path")
    try:
        ast.parse(edit.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ContractError(f"{edit.path} does not parse: {error}", location="edits.text") from None
    if edit.path == custom_fn.FILE:
        custom_fn.lint(edit.text)
