"""The view of a run as text for a prompt, bounded in length for runs of any size.

Every function depends on its arguments alone: no run id, path, time or host, so that a recorded run replays elsewhere.
Rounds are named by number.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autoqec.contracts.dsl import FAMILIES, PredecoderDSL, flatten, parse_dsl
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.errors import ContractError
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.data_blocks import data_block, fit_lines, fitted_block, sanitize
from autoqec.ideators import space
from autoqec.ideators.search_state import ABORTED_STATUSES
from autoqec.store.train_log import LossCurve

# Budget of the view in characters. The parts of the context keep their length from round to round, so that a provider's
# cache serves them; what the other parts leave goes to the code.
MAX_VIEW_CHARS = 30_000
CONTEXT_CHARS = 21_900  # notes from earlier runs and the record of the rounds, which gets what the notes leave
NOTES_CHARS = 2_500
TURN_CHARS = 4_300  # changes of code, failed ideas and the present state
STATE_CHARS = 2_200
FAILURES_CHARS = 600
ASIDE_CHARS = MAX_VIEW_CHARS - CONTEXT_CHARS - TURN_CHARS  # lessons, the machine and what is left of the budget
LESSONS_CHARS = 3_000
MACHINE_CHARS = 400
LEFT_CHARS = 400

_SHOWN_OF_PROFILE = {"name", "train_shots", "finetune_shots", "train_gflops", "val_shots"}

_ROUND_SECTIONS = ("verified, best first", "last rounds, newest first", "last advice of the Analyst")
MAX_SHORT_VIEW_CHARS = 4_600  # of a view that lists its rounds itself; keeps such a prompt below 5k tokens


def describe_config(config: dict[str, Any] | None) -> str:
    """Return a config as its family and the keys that differ from the family's defaults."""
    if not config or config.get("type") not in FAMILIES:
        return "no config"
    family = config["type"]
    try:
        mine = flatten(parse_dsl(config).config())
    except ContractError:
        return f"{family} (no longer valid)"
    defaults = flatten(PredecoderDSL.model_validate({"type": family, family: {}}).config())
    changed = [
        f"{key.removeprefix(family + '.')}={space.format_value(mine[key])}"
        for key in mine
        if mine[key] != defaults.get(key)
    ]
    return f"{family}({', '.join(changed)})"


def round_line(row: RoundRow, names: dict[str, int]) -> str:
    """One measured round in one line."""
    parts = [
        f"r{row['round']}",
        describe_config(row.get("dsl_config")),
        f"from {format_parents(row.get('fork_from'), names)}",
    ]
    if row.get("status") not in (None, "ok"):
        return sanitize(" ".join(parts) + f": {row['status']}: {sanitize(row.get('status_reason'), 90)}", 300)
    parts.append(f"validation {_delta(row.get('delta_ler'))}")
    if row.get("verify_verdict"):
        parts.append(f"verdict {row['verify_verdict']} {_interval(row)}")
    parts.append(f"{row.get('n_params')} params, {row.get('flops_per_syndrome')} FLOPs")
    if row.get("forkable"):
        parts.append("forkable")
    return sanitize("; ".join(parts), 300)


def format_parents(fork_from: Any, names: dict[str, int]) -> str:
    """`baseline`, or round numbers joined by +, for a branch or a list of branches."""
    branches = [fork_from] if isinstance(fork_from, str) else list(fork_from or [])
    return "+".join(f"r{names[branch]}" if branch in names else "baseline" for branch in branches) or "baseline"


def round_numbers(view: IdeatorView) -> dict[str, int]:
    """Return branch -> round, for the rounds of the view."""
    return {branch: row["round"] for row in [*view.history, *view.pending] if (branch := row.get("branch"))}


def format_ideator_view(view: IdeatorView, *, with_rounds: bool = True, limit: int = MAX_SHORT_VIEW_CHARS) -> str:
    """Return the present state of the run in at most `limit` characters, most informative parts first.

    Runs of any length keep: the env, the verified front, failures by frequency, the last rounds and the last advice.

    Args:
        view: The view.
        with_rounds: Whether to list rounds; False if the model sees their record beside it.
        limit: Maximum number of characters.
    """
    names = round_numbers(view)
    rows = [row for row in view.history if row.get("status") not in ABORTED_STATUSES]
    verified = [row for row in rows if row.get("verify_verdict") == "VERIFIED"]
    verified.sort(key=lambda row: (-(row.get("delta_vs_baseline_holdout") or 0.0), row["round"]))
    pending = [f"r{row['round']}: {describe_config(row.get('dsl_config'))}" for row in view.pending]
    sections = [
        ("env", _env(view), 700),
        ("pinned: these keys keep these values, whatever is proposed", _lines(view.pins), 400),
        ("so far", _summary_lines(rows), 400),
        (_ROUND_SECTIONS[0], (round_line(row, names) for row in verified), 1300),
        ("next test of the verifier", _next_test(view), 300),
        ("failures and rejections, most frequent first", _failures(rows), 900 if with_rounds else 350),
        (_ROUND_SECTIONS[1], (round_line(row, names) for row in rows[::-1]), 1300),
        ("running now", pending, 300),
        (
            _ROUND_SECTIONS[2],
            [sanitize(row.get("next_hypothesis_seed"), 250) for row in rows[-2:][::-1]],
            500,
        ),
        ("state of the search", _lines(view.sampler), 500),
    ]
    blocks: list[str] = []
    for name, lines, share in sections:
        if not with_rounds and name in _ROUND_SECTIONS:
            continue
        remaining = min(share, limit - sum(len(block) + 1 for block in blocks) - len(name) - 60)
        text = fit_lines(lines, remaining) if remaining > 40 else ""
        if text:
            blocks.append(data_block(name, text))
    return "\n".join(blocks)


def _next_test(view: IdeatorView) -> list[str]:
    test = view.next_test
    if test is None:
        return []
    return [
        f"number {test.index} of this run: it needs an e-value of {test.threshold:.3g}; the first needed "
        f"{test.first_threshold:.3g}. Every test raises the threshold for the next ones, every discovery lowers it."
    ]


def machine_block(state: dict[str, Any]) -> str:
    """Cores, memory, GPU and the duration of past rounds as a data block.

    Args:
        state: What `autoqec machine-state` reports.
    """
    machine, median = state.get("machine") or {}, state.get("predicted_round_s")
    memory = (machine.get("memory") or {}).get("available_gb")
    gpu = (machine.get("gpu") or {}).get("name")
    hardware = f"{(machine.get('cpu') or {}).get('cores')} cores, {memory} GB of memory free, {gpu or 'no GPU'}"
    lines = [sanitize(hardware, 160)]
    if median is not None:
        lines.append(f"training and measuring a round takes {median:.3g} s (median)")
    if state.get("killed_by_safety"):
        lines.append(f"{state['killed_by_safety']} rounds were stopped by a resource limit")
    timed = [f"{params}: {seconds:.3g} s" for params, seconds in (state.get("params_vs_time") or [])[:-9:-1]]
    return fitted_block(
        "machine, and number of parameters: seconds of the last rounds", [*lines, *timed], MACHINE_CHARS
    )


def notes_block(view: IdeatorView) -> str:
    """What earlier runs learned as a data block, the same in every round of a run; empty without notes."""
    return fitted_block("notes from earlier runs", _lines(view.notes), NOTES_CHARS)


def budget_block(lines: Sequence[str]) -> str:
    """What is left of the limits of the run as a data block; empty without limits."""
    return fitted_block("left of the budget", lines, LEFT_CHARS)


def format_loss_curves(curves: Mapping[str, LossCurve], points: int = 16) -> str:
    """One line of `updates:loss` per training phase, thinned to about `points` values each."""
    lines = []
    for phase, curve in curves.items():
        step = max(1, (len(curve) - 1) // (points - 1))
        thin = curve[::step]
        thin = thin if thin[-1] == curve[-1] else [*thin, curve[-1]]
        lines.append(f"{sanitize(phase, 40)}: " + " ".join(f"{updates}:{loss:.4g}" for updates, loss in thin))
    return "\n".join(lines) or "no loss was recorded"


def _env(view: IdeatorView) -> list[str]:
    env, profile = view.require_env(), view.profile
    shots = profile.model_dump(include=_SHOWN_OF_PROFILE) if profile else {}
    code = env.code.model_dump(mode="json", exclude={"text", "path", "manifest", "estimated"})
    parts = {"code": code, "noise": env.noise.dump(), "limits": env.constraints.dump(), "profile": shots}
    lines = [f"{name}: {_compact(value)}" for name, value in parts.items() if value]
    lines.append(f"inner decoder: {env.backend}; baselines: {prompts.describe_baselines(env.baselines) or 'none'}")
    lines.append(f"inputs of a network: {view.inputs}")
    return [*lines, f"baseline config: {describe_config(view.baseline_config)}"]


def _summary_lines(rows: Sequence[RoundRow]) -> list[str]:
    ends = Counter(str(row["status"]) for row in rows if row.get("status") not in (None, "ok"))
    ends.update(f"verdict {row['verify_verdict']}" for row in rows if row.get("verify_verdict"))
    lines = [f"rounds: {len(rows)}", ", ".join(f"{ending}: {count}" for ending, count in ends.most_common())]
    for family in FAMILIES:
        mine = [row for row in rows if (row.get("dsl_config") or {}).get("type") == family]
        measured = [delta for row in mine if (delta := row.get("delta_ler")) is not None]
        verified = sum(row.get("verify_verdict") == "VERIFIED" for row in mine)
        best = f"best validation {_delta(max(measured))}" if measured else "nothing measured"
        lines.append(f"{family}: {len(mine)} tried, {len(measured)} measured, {verified} verified, {best}")
    return lines


def _failures(rows: Sequence[RoundRow]) -> list[str]:
    """Return the kinds of failure, most frequent first: how often, in which round last, with which config."""
    groups: dict[tuple[str, str], list[RoundRow]] = {}
    for row in rows:
        if row.get("status") not in (None, "ok"):
            key = (str(row["status"]), _without_numbers(row.get("status_reason")))
        elif row.get("verify_verdict") not in (None, "VERIFIED"):
            reasons = row.get("verify_reasons") or ("",)
            key = (f"verdict {row['verify_verdict']}", _without_numbers(reasons[0]))
        else:
            continue
        groups.setdefault(key, []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), -item[1][-1]["round"]))
    return [
        f"{len(hits)}x {status}: {reason} (last r{hits[-1]['round']}, "
        f"{describe_config(hits[-1].get('dsl_config'))[:110]})"
        for (status, reason), hits in ordered
    ]


def _without_numbers(reason: Any) -> str:
    """Return a reason with numbers replaced, before it is cut: the same failure must not count as several."""
    return sanitize(re.sub(r"\d+", "#", sanitize(reason, 400)), 70)


def _interval(row: RoundRow) -> str:
    low, high = row.get("delta_holdout_low"), row.get("delta_holdout_high")
    span = f" [{low:+.2e}, {high:+.2e}]" if low is not None and high is not None else ""
    return _delta(row.get("delta_vs_baseline_holdout")) + span


def _delta(value: float | None) -> str:
    return "not measured" if value is None else f"delta {value:+.2e}"


def _compact(value: Any) -> str:
    return sanitize(json.dumps(value, separators=(",", ":"), sort_keys=True), 300)


def _lines(value: Any) -> list[str]:
    if not value:
        return []
    if isinstance(value, str):
        return [sanitize(line, 300) for line in value.splitlines()]
    if isinstance(value, dict):
        return [f"{key}: {_compact(item)}" for key, item in value.items()]
    return [sanitize(item, 300) for item in value]
