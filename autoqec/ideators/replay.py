"""Replays the proposals of an earlier run in order, to measure them elsewhere or with another profile."""

from __future__ import annotations

from collections.abc import Sequence

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.round import ForkFrom
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.ideators import moves, space
from autoqec.ideators.moves import Move
from autoqec.ideators.search_state import ABORTED_STATUSES, SearchState
from autoqec.store.layout import BRANCH


class ReplayIdeator:
    """Proposes the next round of an earlier run.

    A parent is the round that repeats the earlier parent. If that round left no branch, the config starts from the
    baseline with fresh weights.

    Args:
        rows: History of the earlier run; aborted rounds are skipped.
    """

    def __init__(self, rows: Sequence[HistoryRow]) -> None:
        self._rows = [
            row
            for row in rows
            if row.status not in ABORTED_STATUSES and row.refers_to_attempt is None and row.dsl_config is not None
        ]
        self._index_by_branch = {row.branch: index for index, row in enumerate(self._rows) if row.branch}

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, view: IdeatorView) -> IdeatorResponse:
        """Propose the next earlier round. UsageError once all are replayed."""
        state = SearchState.read(view)
        if state.n_proposed >= len(self):
            raise UsageError(
                f"the earlier run has {len(self)} proposals, and all were replayed",
                location="replay",
                hint="give fewer --rounds",
            )
        row = self._rows[state.n_proposed]
        assert row.dsl_config is not None  # rows without a config are skipped
        config, fork = dict(row.dsl_config), self._fork(row.fork_from, state)
        if fork is None:
            # The config is complete; what git would have merged and the weights of the parent are not available.
            training = {**config.get("training", {}), "init": "fresh"}
            config = {**config, "training": training} if space.digest(config) else config
        return moves.to_response(
            Move(
                slug=_slug(row),
                hypothesis=row.hypothesis,
                config=config,
                fork_from="baseline" if fork is None else fork,
                compose_mode=None if fork is None else row.compose_mode,
            ),
            source=f"replay {row.round}: {row.ideator_source}"[:200],
        )

    def _fork(self, old: ForkFrom, state: SearchState) -> ForkFrom | None:
        """Return the earlier parents as branches of this run; None if one is missing."""
        if old == "baseline":
            return "baseline"
        n_proposed = sorted((*state.observed, *state.pending), key=lambda row: int(row["round"]))
        branches = []
        for branch in (old,) if isinstance(old, str) else old:
            index = self._index_by_branch.get(branch)
            counterpart = n_proposed[index] if index is not None and index < len(n_proposed) else None
            if counterpart is None or not counterpart["forkable"]:
                return None
            branches.append(moves.parent_of(counterpart)[0])
        return branches[0] if isinstance(old, str) else tuple(branches)


def _slug(row: HistoryRow) -> str:
    match = BRANCH.match(row.branch or "")
    return match["rest"].partition("-")[2] if match else f"round-{row.round}"
