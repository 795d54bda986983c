"""The proposals of an older run, in their order: to measure them again elsewhere, or under another profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.round import ForkFrom
from autoqec.errors import InputError
from autoqec.ideators import moves, space
from autoqec.ideators.moves import LOST, Move, State
from autoqec.store.layout import BRANCH


class Replay:
    """View -> the older run's next proposal. rows: that run's history; rounds that were lost are passed over.

    A parent is the round that repeats the old parent; where that one left no branch, the config starts at the
    baseline with fresh weights. Raises InputError once the old proposals are used up.
    """

    def __init__(self, rows: Sequence[HistoryRow]) -> None:
        self._rows = [
            row
            for row in rows
            if row.status not in LOST and row.refers_to_attempt is None and row.dsl_config is not None
        ]
        self._place = {row.branch: place for place, row in enumerate(self._rows) if row.branch}

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, view: dict[str, Any]) -> IdeatorResponse:
        state = State.read(view)
        if state.spoken >= len(self):
            raise InputError(
                f"the older run holds {len(self)} proposals, and all were made",
                where="replay",
                mend="give fewer --rounds",
            )
        row = self._rows[state.spoken]
        assert row.dsl_config is not None  # chosen so
        config, fork = dict(row.dsl_config), self._fork(row.fork_from, state)
        if fork is None:
            # The config is whole; only what git would have merged in and the parent's weights are out of reach.
            training = {**config.get("training", {}), "init": "fresh"}
            config = {**config, "training": training} if space.digest(config) else config
        return moves.reply(
            Move(
                slug=_slug(row),
                hypothesis=row.hypothesis,
                config=config,
                fork_from="baseline" if fork is None else fork,
                compose_mode=None if fork is None else row.compose_mode,
            ),
            source=f"replay {row.round}: {row.ideator_source}"[:200],
        )

    def _fork(self, old: ForkFrom, state: State) -> ForkFrom | None:
        """The old parents as branches of this run; None where one is missing."""
        if old == "baseline":
            return "baseline"
        spoken = sorted((*state.told, *state.pending), key=lambda row: int(row["round"]))
        branches = []
        for branch in (old,) if isinstance(old, str) else old:
            place = self._place.get(branch)
            twin = spoken[place] if place is not None and place < len(spoken) else None
            if twin is None or not twin["forkable"]:
                return None
            branches.append(twin["branch"])
        return branches[0] if isinstance(old, str) else tuple(branches)


def _slug(row: HistoryRow) -> str:
    match = BRANCH.match(row.branch or "")
    return match["rest"].partition("-")[2] if match else f"round-{row.round}"
