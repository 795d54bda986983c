"""The Coder writes config and code, and rejects edits outside the editable modules."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.views import CoderView
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.roles.coder import LlmCoder
from tests.support.messages_server import (
    MessagesServer,
    say_json,
)
from tests.unit.extensions.language_models.roles.test_ideator import (
    gnn,
    served,
)


def task(**more: Any) -> CoderView:
    return CoderView(**{"proposal": gnn(hidden=32), "hypothesis": "h", "slug": "try-it", **more})


MODULES = {"gnn.py": "import torch\n", "mlp.py": "x = 1\n", "predecoder.yaml": "type: mlp\n"}


def test_coder_config_only(server: MessagesServer) -> None:
    server.script(say_json({"dsl_config": gnn(hidden=48), "commit_message": "gnn: 48 wide"}))
    response = LlmCoder(served(server))(task())
    assert response is not None and response.dsl_config == gnn(hidden=48)
    assert [edit.path for edit in response.edits] == ["predecoder.yaml"]
    assert "hidden: 48" in response.edits[0].text


def test_coder_edits_code_if_allowed() -> None:
    edit = {"path": "gnn.py", "text": "import torch\nx = 2\n"}
    lm = ScriptedLM([{"dsl_config": gnn(), "edits": [edit], "commit_message": "m"}])
    response = LlmCoder(lm)(task(modules=MODULES))
    assert response is not None and [edit.path for edit in response.edits] == ["predecoder.yaml", "gnn.py"]
    assert "import torch" in str(lm.requests[0].messages[0].content)
    assert "Head(hidden, n_outputs).forward(h)" in lm.requests[0].system[1], "what custom_fn.py may define"
    assert "type: mlp" not in str(lm.requests[0].messages[0].content)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"path": "../../eval/verifier.py", "text": ""}, "not a Python file"),
        ({"path": "/etc/passwd.py", "text": ""}, "not a Python file"),
        ({"path": "predecoder.yaml", "text": "type: gnn"}, "not a Python file"),
        ({"path": "conftest.pth", "text": ""}, "not a Python file"),
        ({"path": "gnn.py", "text": "def ("}, "does not parse"),
        ({"path": "gnn.py", "text": "\0"}, "does not parse"),
        ({"path": "custom_fn.py", "text": "import os\n"}, "import of os is not allowed"),
        ({"path": "custom_fn.py", "text": "class Other: pass\n"}, "defines none of MessageFn, Aggregation, Head"),
    ],
)
def test_bad_edits_are_rejected_with_the_reason(edit: dict[str, str], reason: str) -> None:
    bad = {"dsl_config": gnn(), "edits": [edit], "commit_message": "m"}
    lm = ScriptedLM([bad, bad])
    assert LlmCoder(lm)(task(modules=MODULES)) is None
    assert reason in str(lm.requests[1].messages[-1].content)


def test_edits_are_rejected_if_not_allowed() -> None:
    bad = {"dsl_config": gnn(), "edits": [{"path": "gnn.py", "text": ""}], "commit_message": "m"}
    good = {"dsl_config": gnn(), "commit_message": "m"}
    response = LlmCoder(ScriptedLM([bad, good]))(task())
    assert response is not None and len(response.edits) == 1


def test_pure_composition_costs_no_call() -> None:
    lm = ScriptedLM([])
    response = LlmCoder(lm)(task(compose_mode="pure"))
    assert response is not None and response.edits == () and not lm.requests
