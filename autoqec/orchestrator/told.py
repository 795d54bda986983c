"""What a run's rows give rise to, each put into words once: for people's views and for the roles."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.pareto import ParetoEntry, preview
from autoqec.orchestrator import fork_graph, views
from autoqec.orchestrator.attempts import Standing
from autoqec.orchestrator.tally import Tally

SEEN = (
    "round",
    "status",
    "status_reason",
    "hypothesis",
    "fork_from",
    "fork_from_canonical",
    "compose_mode",
    "branch",
    "dsl_config",
    "delta_ler",
    "delta_vs_parent",
    "val_shots",
    "flops_per_syndrome",
    "n_params",
    "verdict",
    "verify_verdict",
    "verify_reasons",
    "delta_vs_baseline_holdout",
    "delta_holdout_low",
    "delta_holdout_high",
    "beats_panel",
    "summary_1line",
    "next_hypothesis_seed",
)


class Seen(dict[str, Any]):
    """A row, or an entry of the front, as the roles see it: the same object for all, to be read and copied, not
    written to."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a row of history is not to be changed; dict(row) is a copy that may be")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _seen(one: Standing) -> Seen:
    row = one.row.dump()
    forkable = one.branch is not None and one.row.status == "ok"
    return Seen({key: row[key] for key in SEEN} | {"fork_from": one.row.fork_from, "forkable": forkable})


class Told:
    """What the rows taken in so far give rise to, each row put into words once: a function of them and their order."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.sections: list[str] = []
        self.summary = views.summary(self.tally, 0)
        self.nodes: dict[str, str] = {}
        self.seen: dict[str, Seen] = {}
        self.last_round = 0
        self._entries: dict[str, tuple[ParetoEntry, Seen, str]] = {}
        self._front: tuple[list[ParetoEntry], str, str] | None = None
        self._candidates: tuple[list[HistoryRow], str] | None = None

    def take(self, row: HistoryRow) -> None:
        one = self.tally.take(row)
        if one is not None:
            self.nodes[one.attempt_id] = _line(fork_graph.node(one, self.tally.branches))
            self.seen[one.attempt_id] = _seen(one)
        self.sections.append(views.section(row, self.tally))
        if views.summary_is_due(len(self.sections)):
            self.summary = views.summary(self.tally, len(self.sections))
        self.last_round = max(self.last_round, row.round)

    def entry(self, entry: ParetoEntry) -> tuple[Seen, str]:
        """An entry of the front as roles see it and as its files hold it; worked out once, however long the front."""
        known = self._entries.get(entry.round_attempt_id)
        if known is None or known[0] is not entry:
            value = entry.dump()
            known = self._entries[entry.round_attempt_id] = entry, Seen(value), _line(value)
        return known[1:]

    def front(self) -> tuple[str, str]:
        """pareto.json and pareto_preview.json."""
        front = self.tally.front()
        if self._front is None or self._front[0] is not front:
            texts = [_lines(self.entry(entry)[1] for entry in part) for part in (front, preview(front))]
            self._front = front, texts[0], texts[1]
        return self._front[1:]

    def candidates(self) -> str:
        """candidate_pareto.json."""
        rows = self.tally.candidates()
        if self._candidates is None or self._candidates[0] is not rows:
            self._candidates = rows, _lines(_line(views.candidate(row)) for row in rows)
        return self._candidates[1]


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lines(entries: Iterable[str]) -> str:
    """A JSON list, one entry a line."""
    lines = ",\n".join(entries)
    return f"[\n{lines}\n]\n" if lines else "[]\n"
