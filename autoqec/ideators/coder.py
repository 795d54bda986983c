"""The Coder without a language model: the proposal becomes the search surface's config file."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.messages import CoderResponse, parse_response
from autoqec.store.files import dump_config
from autoqec.store.layout import EDITABLE_CONFIG


def code(view: dict[str, Any]) -> CoderResponse:
    """view: {proposal, hypothesis, slug, compose_mode}. A pure composition is git's merge alone: no edit.

    Raises ContractError for a proposal that is no predecoder config.
    """
    config = parse_dsl(view["proposal"], location="proposal").config()
    edit = {"path": PurePosixPath(EDITABLE_CONFIG).name, "text": dump_config(config)}
    response = {
        "dsl_config": config,
        "edits": [] if view["compose_mode"] == "pure" else [edit],
        "commit_message": f"{view['slug']}: {view['hypothesis']}"[:400],
    }
    return parse_response(CoderResponse, canonical_json(response))
