"""The Analyst through a language model: nominates a round by its figures, its loss, and the round before.

Returns None if the model gave no usable answer after one retry; the rule-based Analyst then takes the round.
"""

from __future__ import annotations

import json

from autoqec.contracts.messages import AnalystResponse
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.views import AnalystView
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import Message, Request
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.data_blocks import data_block, sanitize
from autoqec.extensions.language_models.roles.role import Role, validated
from autoqec.extensions.language_models.roles.view_text import format_loss_curves
from autoqec.ideators import analyst
from autoqec.store.layout import RoundLayout, RunLayout
from autoqec.store.round_files import load_contract, read_metrics
from autoqec.store.train_log import read_loss_curves

_MACHINE_DEPENDENT_FIELDS = (
    "train_wallclock_s",
    "eval_wallclock_s",
    "vram_peak_gb",
    "rss_peak_gb",
    "checkpoint_path",
    "training_log_path",
    "measurement_started_at",
    "measurement_finished_at",
)


class LlmAnalyst(Role):
    """Nominates a round from an `AnalystView` (`RunMemory.l3_for_analyst`)."""

    name = "analyst"

    def __call__(self, view: AnalystView) -> AnalystResponse | None:
        """Nominate a round or not; None without a usable answer."""
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: AnalystView) -> Request:
        """Return the prompt for a view: figures of the round, its loss by phase, and the round before."""
        metrics, layout = read_metrics(view.metrics_path), _round_layout(view)
        rule_based = analyst.analyse(view)
        curves = {} if layout is None else read_loss_curves(layout.progress)
        blocks = [
            data_block("hypothesis", sanitize(view.hypothesis, 400)),
            data_block("metrics", _metrics_json(metrics)),
            data_block("paired figures", sanitize(rule_based.analysis, 2000)),
            data_block("loss by training phase; phases have different losses", format_loss_curves(curves)),
        ]
        previous = _previous_metrics(layout)
        if previous is not None:
            blocks.append(data_block("previous round", _metrics_json(previous)))
        turn = "\n".join([*blocks, "What did the round show, and what should be tried next?"])
        return Request(
            role=self.name,
            system=(prompts.analyst_prompt(view.terms),),
            messages=(Message(role="user", content=turn),),
            output=AnalystResponse,
        )

    def _response(self, view: AnalystView, answer: AnalystResponse) -> AnalystResponse:
        status = read_metrics(view.metrics_path).status
        if answer.verdict == "candidate" and status != "ok":
            raise ContractError(f"a round that ended as {status} cannot be nominated", location="verdict")
        return validated(
            AnalystResponse,
            verdict=answer.verdict,
            summary_1line=sanitize(answer.summary_1line, 400),
            analysis="\n".join(sanitize(line, 4000) for line in answer.analysis.splitlines())[:4000],
            next_hypothesis_seed=sanitize(answer.next_hypothesis_seed, 400),
        )


def _metrics_json(metrics: RoundMetrics) -> str:
    """Figures without times and paths, which differ between machines."""
    kept = {
        name: value
        for name, value in metrics.dump().items()
        if value is not None and name not in _MACHINE_DEPENDENT_FIELDS
    }
    if metrics.status_reason:
        kept["status_reason"] = sanitize(metrics.status_reason, 400)
    return json.dumps(kept, sort_keys=True, indent=1)


def _round_layout(view: AnalystView) -> RoundLayout | None:
    """Return the round's directory; None if the view names a directory that is not a round's."""
    directory = view.round_dir
    number = directory.name.removeprefix("round_")
    return RunLayout(directory.parents[2], directory.parent.name).round(int(number)) if number.isdigit() else None


def _previous_metrics(layout: RoundLayout | None) -> RoundMetrics | None:
    if layout is None or layout.round < 2:
        return None
    previous = RoundLayout(layout.dir.with_name(f"round_{layout.round - 1}"), layout.round - 1)
    return load_contract(previous.metrics, RoundMetrics)
