"""Who speaks, by name: wrong choices end before a run exists; calls are taped, booked and stopped in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.history import Begun
from autoqec.contracts.messages import IdeatorResponse
from autoqec.errors import InputError
from autoqec.lm.errors import LmAuth, LmCassetteMiss
from autoqec.lm.ledger import Ledger
from autoqec.orchestration.run import Roles, Run, search, start_run
from autoqec.store import jsonl
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from cli import ideators
from cli.ideators import Choice, Limits
from tests.conftest import Lab
from tests.support import rounds

GNN = PredecoderDSL.model_validate({"type": "gnn", "gnn": {"hidden": 11}}).config()
ANSWER = {"hypothesis": "messages see the lattice", "slug": "gnn-eleven", "fork_from": [], "proposal": GNN}
SECRET = b"a secret that only tests may know"


@pytest.fixture
def run(lab: Lab, tmp_path: Path) -> Iterator[Run]:
    """An opened run whose first round has begun."""
    (tmp_path / "secret").write_bytes(SECRET)
    with start_run(lab.root / "env.yaml", lab.root, "smoke", 1, "llm", secret_file=tmp_path / "secret",
                   roles=Roles(search("tpe"))) as opened:  # fmt: skip
        opened.memory.history.append_attempt(Begun(round_attempt_id="attempt-1", round=1))
        yield opened


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "said.jsonl"
    path.write_text(json.dumps({"when": "Propose the next round", "say": ANSWER}) + "\n", encoding="utf-8")
    return f"scripted:{path}"


def view(run: Run) -> dict[str, Any]:
    return run.memory.l2_for_ideator(run.env, run.baseline_config)


def silent(kind: str, payload: dict[str, Any]) -> None:
    pass


def test_every_search_has_its_name() -> None:
    for name in ideators.SEARCHES:
        assert callable(search(name))


@pytest.mark.parametrize(
    "choice, words",
    [
        (Choice("oracle"), "unknown ideator"),
        (Choice("replay"), "older run"),
        (Choice("tpe", replay_of="20260101-000000"), "replay"),
        (Choice("replay", replay_of="20260101-000000"), "no such run"),
        (Choice("tpe", model="claude-opus-5-5"), "asks no language model"),
        (Choice("random", max_usd=1.0), "asks no language model"),
        (Choice("llm", model="gpt-unheard-of"), "no backend"),
        (Choice("llm", cassette=Path("nowhere.jsonl")), "not there"),
    ],
)
def test_a_wrong_choice_is_told_before_a_run_exists(choice: Choice, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        ideators.check(choice, tmp_path)


def test_no_key_is_told_before_a_run_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LmAuth, match="no key"):
        ideators.check(Choice("llm"), tmp_path)


def test_budgets_of_the_loop_and_of_the_models_in_one_option() -> None:
    budget, money = ideators.split_budget("rounds=20, usd=3, tokens=200000, plateau=4")
    assert (budget.rounds, budget.plateau, money) == (20, 4, {"usd": 3.0, "tokens": 200_000.0})
    for wrong in ("usd=0", "usd=free", "tokens=-1", "coffee=2"):
        with pytest.raises(InputError, match="no limit"):
            ideators.split_budget(wrong)


def test_a_model_speaks_and_its_calls_are_taped_and_booked(run: Run, model: str) -> None:
    choice = Choice("llm", model=model)
    ideators.check(choice, run.repo.root)
    roles, limits = ideators.speakers(choice, run, silent)
    reply = roles.ideator(view(run))
    assert reply is not None and reply.proposal == GNN and reply.source.startswith("llm scripted:")
    assert limits.spent([], 0.0) is None
    ledger = Ledger(run.layout.ledger)
    assert ledger.by_attempt["attempt-1"].calls == 1 and ledger.by_role["ideator"].calls == 1
    assert [row["role"] for row in jsonl.read(run.layout.cassette)] == ["ideator"]
    coded = roles.coder({"proposal": GNN, "hypothesis": "h", "slug": "s", "compose_mode": None})
    assert coded is None, "a model without an answer leaves the step to the Coder without one"


def test_a_taped_run_speaks_again_without_the_model(run: Run, model: str, tmp_path: Path) -> None:
    first = ideators.speakers(Choice("llm", model=model), run, silent)[0].ideator(view(run))
    tape = tmp_path / "tape.jsonl"
    run.layout.cassette.rename(tape)
    (tmp_path / "said.jsonl").unlink()
    choice = Choice("llm", model=model, cassette=tape)
    ideators.check(choice, run.repo.root)
    roles, _ = ideators.speakers(choice, run, silent)
    assert roles.ideator(view(run)) == first
    assert run.layout.cassette.read_bytes() == tape.read_bytes(), "the tape travels with the run"
    with pytest.raises(LmCassetteMiss):
        roles.ideator(view(run) | {"notes": "something else"})


def test_a_budget_stops_before_the_call_and_the_run_before_the_next_round(run: Run, model: str) -> None:
    told: list[str] = []
    choice = Choice("llm", model=model, max_tokens=100)
    roles, limits = ideators.speakers(choice, run, lambda kind, payload: told.append(kind))
    assert limits.spent([], 0.0) is None
    assert roles.ideator(view(run)) is None and roles.ideator(view(run)) is None
    assert "budget is 100" in str(limits.spent([], 0.0)) and told == ["lm_budget"]
    assert Ledger(run.layout.ledger).spent.calls == 0
    assert {row["kind"] for row in jsonl.read(run.layout.cassette)} == {"count"}, "counted, and never asked"


def test_hybrid_asks_no_model_for_the_coders_words(run: Run, model: str) -> None:
    roles, _ = ideators.speakers(Choice("hybrid", model=model), run, silent)
    reply = roles.ideator(view(run))
    assert isinstance(reply, IdeatorResponse) and reply.source == "hybrid tpe 0"
    coded = roles.coder({"proposal": GNN, "hypothesis": "h", "slug": "s", "compose_mode": None})
    assert coded is not None and coded.dsl_config == GNN


def test_replay_ends_with_the_older_run(run: Run) -> None:
    older = RunLayout(run.repo.root, rounds.RUN_ID)
    older.round(1).dir.mkdir(parents=True)
    History(older).write_info(rounds.info())
    History(older).append_row(rounds.row(1, dsl_config=GNN))
    choice = Choice("replay", replay_of=rounds.RUN_ID)
    ideators.check(choice, run.repo.root)
    roles, limits = ideators.speakers(choice, run, silent)
    reply = roles.ideator(view(run))
    assert reply is not None and reply.proposal == GNN
    assert limits.spent([], 0.0) is None and "all 1 proposals" in str(limits.spent([rounds.row(1)], 0.0))


def test_the_loops_own_limits_come_first() -> None:
    limits = Limits(rounds=1, also=lambda rows: "the other reason")
    assert limits.spent([rounds.row(1)], 0.0) == "1 of 1 rounds"
    assert limits.spent([], 0.0) == "the other reason"
