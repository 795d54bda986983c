"""Text of models, logs and files stays inside its block."""

from __future__ import annotations

from autoqec.extensions.language_models.roles.data_blocks import data_block, sanitize
from tests.unit.extensions.language_models.roles.test_ideator import (
    INJECTION,
)


def test_text_cannot_close_its_own_block() -> None:
    text = INJECTION
    for _ in range(3):
        fenced = data_block("x", text)
        tag = fenced[1 : fenced.index(" ")]
        assert tag not in text and fenced.count(f"</{tag}>") == 1 and fenced.endswith(f"</{tag}>")
        text = fenced  # the tag of one block cannot open another


def test_sanitize_removes_directories() -> None:
    assert sanitize("File /home/me/workspace/autoqec/x.py: 3/4 done, a/b", 100) == "File x.py: 3/4 done, a/b"
