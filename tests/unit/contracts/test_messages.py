"""Replies of roles: any invalid reply is an error that names the fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoqec.contracts.messages import AnalystResponse, IdeatorResponse, parse_response
from autoqec.errors import ContractError

GOOD = {"hypothesis": "wider helps", "slug": "wider", "proposal": {"type": "mlp"}}


def test_valid_reply_is_accepted() -> None:
    reply = parse_response(IdeatorResponse, json.dumps(GOOD))
    assert reply.fork_from == "baseline" and reply.slug == "wider"


@pytest.mark.parametrize("slug", ["", "-x", "x-", "a--b", "Größer", "a b", "a/b", "../x", "a\n", "x" * 41])
def test_slugs_are_safe_in_a_branch_name(slug: str) -> None:
    with pytest.raises(ContractError, match="slug"):
        parse_response(IdeatorResponse, json.dumps({**GOOD, "slug": slug}))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Sure! Here is my idea.", "not JSON"),
        ("[]", "IdeatorResponse"),
        ('{"slug": "x"}', "hypothesis"),
        (json.dumps({**GOOD, "fork_from": ["a", "b"]}), "compose_mode"),
        (json.dumps({**GOOD, "extra": 1}), "extra"),
    ],
)
def test_faults_are_named(text: str, part: str) -> None:
    with pytest.raises(ContractError, match=part):
        parse_response(IdeatorResponse, text)


@given(st.text())
def test_any_text_is_a_contract_error(text: str) -> None:
    with pytest.raises(ContractError):
        parse_response(AnalystResponse, text)
