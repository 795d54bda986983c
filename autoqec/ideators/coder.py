"""The rule-based Coder: writes the proposal as the config file of the editable modules."""

from __future__ import annotations

from pathlib import PurePosixPath

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.messages import CoderResponse, parse_response
from autoqec.contracts.views import CoderView
from autoqec.store.files import dump_config
from autoqec.store.layout import EDITABLE_CONFIG


def code(view: CoderView) -> CoderResponse:
    """Write the config file of a proposal.

    Args:
        view: The proposal. A pure composition needs no edit: git merges the branches.

    Raises:
        ContractError: The proposal is not a valid predecoder config.
    """
    config = parse_dsl(view.proposal, location="proposal").config()
    edit = {"path": PurePosixPath(EDITABLE_CONFIG).name, "text": dump_config(config)}
    response = {
        "dsl_config": config,
        "edits": [] if view.compose_mode == "pure" else [edit],
        "commit_message": f"{view.slug}: {view.hypothesis}"[:400],
    }
    return parse_response(CoderResponse, canonical_json(response))
