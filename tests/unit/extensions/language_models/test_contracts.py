"""Reply schemas that are shown to language models."""

from __future__ import annotations

import json

import pytest

from autoqec.contracts.base import Contract
from autoqec.extensions.language_models.contracts import CoderAnswer, IdeatorAnswer


@pytest.mark.parametrize("kind", [IdeatorAnswer, CoderAnswer])
def test_reply_schema_has_training_options_but_no_process_counts(kind: type[Contract]) -> None:
    schema = kind.model_json_schema()
    training = schema["$defs"]["SingleProcessTraining"]
    assert {"sync", "replay"}.isdisjoint(training["properties"]) and "policy_gradient" in training["properties"]
    assert training["properties"]["loop"]["enum"] == ["minibatch", "minibatch_eval"]
    text = json.dumps(schema)
    assert '"title":' not in text and "SyncConfig" not in text and "ReplayConfig" not in text
    referred = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert referred <= set(schema["$defs"]), "every reference leads somewhere"
