"""The schema that a model answers by: what it may choose, and no word more."""

from __future__ import annotations

from typing import Any

from autoqec.contracts.base import Contract

# How many processes train is for whoever owns the machine: a config that comes from a model trains in one.
MACHINE_BLOCKS = {"sync": "SyncConfig", "replay": "ReplayConfig"}
ALLOWED_LOOPS = ["minibatch", "minibatch_eval"]


class ModelOutput(Contract):
    """A contract whose schema for models leaves out titles, and the blocks that belong to the machine."""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        schema: dict[str, Any] = _without_titles(super().model_json_schema(*args, **kwargs))
        training = schema["$defs"]["TrainingConfig"]
        for block, name in MACHINE_BLOCKS.items():
            del training["properties"][block], schema["$defs"][name]
        training["properties"]["loop"]["enum"] = ALLOWED_LOOPS
        training["description"] = training["description"].splitlines()[0]
        return schema


def _without_titles(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: _without_titles(value) for key, value in part.items() if key != "title" or not isinstance(value, str)
        }
    return [_without_titles(value) for value in part] if isinstance(part, list) else part
