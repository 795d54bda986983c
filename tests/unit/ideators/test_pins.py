"""Searches with pins: proposals keep them, and pinned keys are not searched."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import FAMILIES, flatten, parse_dsl
from autoqec.contracts.pins import apply_pins, validate_pins
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.ideators import moves, space, tpe
from autoqec.ideators.search_state import SearchState, with_expected_labels
from autoqec.locate import BUILTIN
from autoqec.orchestrator.plugin_protocols import SEARCHES
from autoqec.orchestrator.roles import search
from autoqec.store.files import dump_config, load_env
from tests.support.role_views import ideator_view

from .test_search import BASELINE, as_row, verified, with_keys

ENV = load_env(BUILTIN / "smoke.yaml")[0].dump()
APART = validate_pins({"training.loop": "async", "training.batch_size": 96})  # 96 lies outside the space
FAMILY = validate_pins({"type": "conv", "conv.layers": 2, "training.loop": "sync"})


def view(history: list[dict[str, Any]], pins: dict[str, Any]) -> IdeatorView:
    return ideator_view(history, baseline_config=BASELINE, pins=pins, env=ENV)


@pytest.mark.parametrize("pins", [APART, FAMILY], ids=["loop", "family"])
@pytest.mark.parametrize("name", SEARCHES)
def test_every_proposal_keeps_the_pins_and_is_new(name: str, pins: dict[str, Any]) -> None:
    history: list[dict[str, Any]] = []
    digests = set()
    for number in range(1, 13):
        reply = search(name)(view(history, pins))
        assert apply_pins(reply.proposal, pins) == reply.proposal
        digests.add(parse_dsl(reply.proposal).sha256())
        good = {"verify_verdict": "VERIFIED", "delta_vs_baseline_holdout": 0.001} if number % 3 == 1 else {}
        history.append(as_row(number, reply, **good))
    assert len(digests) == 12
    kinds = {row["dsl_config"]["type"] for row in history}
    assert kinds == {"conv"} if pins is FAMILY else kinds <= set(FAMILIES)
    if name == "evolve":
        assert any(row["fork_from"] != "baseline" for row in history), "values outside the space do not end evolution"


def test_tpe_uses_rounds_whose_pinned_values_are_outside_the_space() -> None:
    state = SearchState.read(view([], APART))
    params = state.params_of(apply_pins(BASELINE, APART))
    assert params is not None and "training.batch_size" not in params and params["type"] == "mlp"
    assert space.params_of(apply_pins(BASELINE, APART)) is None, "without the pins it is no point of the space"
    suggestion = next(tpe.suggestions(state))
    assert "training.batch_size" not in suggestion
    held = state.build(suggestion)
    assert held is not None and held["training"]["batch_size"] == 96


def test_config_that_differs_only_in_a_pinned_key_is_not_new() -> None:
    tried = apply_pins(with_expected_labels(BASELINE), APART)
    state = SearchState.read(view([verified(1, tried, 0.002)], APART))
    second = state.with_pins(with_keys(BASELINE, training__batch_size=2048))
    assert second == tried and not state.is_new(second)
    assert SearchState.read(view([], FAMILY)).with_pins(BASELINE) is None, "another family"


def test_children_of_a_pinned_baseline_compose_and_their_files_merge(tmp_path: Path) -> None:
    first, second = (
        apply_pins(with_keys(BASELINE, **keys), APART) for keys in ({"mlp__hidden": 96}, {"mlp__depth": 3})
    )
    history = [verified(1, first, 0.003), verified(2, second, 0.002)]
    move = moves.compose(SearchState.read(view(history, APART)))
    assert move is not None and move.compose_mode == "pure" and apply_pins(move.config, APART) == move.config
    assert (move.config["mlp"]["hidden"], move.config["mlp"]["depth"]) == (96, 3)
    for name, config in (("one", first), ("base", BASELINE), ("other", second), ("wanted", move.config)):
        (tmp_path / name).write_text(dump_config(config), encoding="utf-8")
    merged = subprocess.run(
        ["git", "merge-file", "-p", "one", "base", "other"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert merged.stdout == (tmp_path / "wanted").read_text(encoding="utf-8")


def test_extension_changes_no_pinned_key() -> None:
    every = {key: value for key, value in flatten(BASELINE).items() if key not in ("mlp.hidden", "training.init")}
    pins = validate_pins(every)
    state = SearchState.read(view([verified(1, BASELINE, 0.002)], pins))
    move = moves.extend(state)
    assert move is not None and set(space.changed_keys(move.config, BASELINE)) == {"mlp.hidden"}


@pytest.mark.parametrize("name", SEARCHES)
def test_pins_that_leave_nothing_to_search_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "MAX_DRAWS", 50)
    pins = validate_pins({key: value for key, value in flatten(BASELINE).items() if key != "training.init"})
    with pytest.raises(UsageError, match="50 draws gave no new config within the env's limits, with type=mlp"):
        search(name)(view([verified(1, with_expected_labels(BASELINE), 0.002)], pins))
