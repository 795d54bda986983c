"""What was judged before, by the order of attempts: a round's number says when it began, not when it was charged."""

from __future__ import annotations

from autoqec.contracts.history import Charged
from autoqec.orchestration.judging import _before

ONE, TWO = "1" * 64, "2" * 64


def charged(attempt_id: str, number: int, artifact: str, index: int) -> Charged:
    return Charged(round_attempt_id=attempt_id, round=number, artifact_sha256=artifact, attempt_index=index)


# Round 5 came first; round 2 was asked for later, by a person, with the same weights.
LINES = [charged("five", 5, ONE, 1), charged("three", 3, TWO, 2), charged("two", 2, ONE, 3)]


def test_a_replay_sees_what_its_own_attempt_saw() -> None:
    assert _before(LINES, "five", judged=True) == {}
    assert _before(LINES, "three", judged=True) == {ONE: 5}
    assert _before(LINES, "two", judged=True) == {ONE: 5, TWO: 3}


def test_the_next_attempt_sees_all() -> None:
    assert _before(LINES, "six", judged=False) == {ONE: 5, TWO: 3}  # the first draw of an artifact is the one named


def test_an_attempt_that_was_cut_off_is_no_draw_of_its_own() -> None:
    again = [*LINES, charged("three", 3, TWO, 4)]
    assert _before(LINES, "three", judged=False) == {ONE: 5}
    assert _before(again, "three", judged=True) == {ONE: 5}
    assert _before(again, "six", judged=False) == {ONE: 5, TWO: 3}
