"""Synthetic runs: any number of rounds without training, with real branches, for tests of reports and views."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from autoqec.contracts.history import Begun, HistoryRow, Planned, RunInfo
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.pareto import ParetoEntry, non_dominated
from autoqec.contracts.round import PairedCounts, canonical_fork
from autoqec.contracts.verdict import (
    BaselineResult,
    Composition,
    CompositionParent,
    Cost,
    Guard,
    PairedEffect,
    Rate,
    SequentialTest,
    VerifyReport,
)
from autoqec.locate import BUILTIN
from autoqec.store import jsonl
from autoqec.store.files import dump_config, load_env
from autoqec.store.layout import EDITABLE_CONFIG, RunLayout
from tests.support.rounds import AT

RUN_ID = "20250102-030405"
SHOTS = 100_000
HASH = "a" * 64
ENV = BUILTIN / "surface_d5_depol.yaml"
Change = Callable[[dict[str, Any]], dict[str, Any]]


def verified(number: int) -> bool:
    return number % 5 == 1


def failed(number: int) -> bool:
    return number % 5 == 4


def make_run(
    root: Path,
    rounds: int,
    *,
    run_id: str = RUN_ID,
    only_failures: bool = False,
    artifacts: bool = True,
    change: Change = dict,
) -> RunLayout:
    """Make a run of `rounds` rounds in a repository at `root`: chains and stars of forks, some verified, some failed.

    artifacts: also write branches, logs and reports. change: applied to every row, as a dict, before it is written.
    """
    layout = RunLayout(root, run_id)
    layout.root.mkdir(parents=True)
    _, env_text = load_env(ENV)
    layout.env.write_text(env_text, encoding="utf-8")
    commits = _branches(root, run_id, rounds if artifacts else 0)
    rows = [_row(layout, number, commits, only_failures) for number in range(1, rounds + 1)]
    layout.run_info.write_text(json.dumps(_info(run_id, commits[0]).dump()), encoding="utf-8")
    rows = [change(row) for row in rows]
    write_lines(layout.history, rows)
    entries = [_entry(row) for row in rows if row["verify_verdict"] == "VERIFIED"]
    front = non_dominated(entries) if len(entries) < 200 else entries[:5]
    layout.pareto.write_text(json.dumps([entry.dump() for entry in front]), encoding="utf-8")
    if artifacts:
        for row in rows:
            _leave(layout, row)
    return layout


def add_pending_round(layout: RunLayout, number: int, hypothesis: str) -> None:
    """Add an attempt that was planned and has no row."""
    attempt = f"attempt-{number}"
    planned = Planned(
        round_attempt_id=attempt,
        round=number,
        branch=layout.branch(number, "next"),
        base_sha="b" * 40,
        fork_from="baseline",
        compose_mode=None,
        ideator=IdeatorResponse(hypothesis=hypothesis, slug="next", proposal={}),
        dsl_config=_config(number),
        at=AT,
    )
    begun = Begun(round_attempt_id=attempt, round=number, at=AT)
    jsonl.append_all(layout.attempts, [begun.dump(), planned.dump()], chained=True)


def append(layout: RunLayout, row: dict[str, Any]) -> None:
    jsonl.append(layout.history, row, chained=True)


def without_hashes(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in (jsonl.CHAIN_KEY, jsonl.LINE_KEY)}


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write history.jsonl or attempts.jsonl with a hash chain of its own, as an attacker could."""
    previous, written = jsonl.NO_LINE, []
    for line in lines:
        content = f'{json.dumps(without_hashes(line))[:-1]},"{jsonl.CHAIN_KEY}":"{previous}"'
        written.append(f'{content},"{jsonl.LINE_KEY}":"{hashlib.sha256(content.encode()).hexdigest()}"}}')
        previous = hashlib.sha256(written[-1].encode()).hexdigest()
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")


def rows(layout: RunLayout) -> list[dict[str, Any]]:
    return [without_hashes(json.loads(line)) for line in layout.history.read_text(encoding="utf-8").splitlines()]


def report_of(row: dict[str, Any], text: str = "") -> VerifyReport:
    """Return the verification report that fits a row. text: value of every field with untrusted text."""
    good = row["verify_verdict"] == "VERIFIED"
    effect = _effect("mwpm", 0.005, 1400, 950 if good else 1390)
    panel = [("mwpm", effect), ("mwpm_correlated", _effect("mwpm_correlated", 0.005, 1100, 950 if good else 1390))]
    return VerifyReport(
        run_id=text or RUN_ID,
        round=row["round"],
        round_attempt_id=row["round_attempt_id"],
        branch=row["branch"],
        commit_sha=row["commit_sha"],
        env_name=text or "surface_d5_depol",
        env_yaml_sha256=HASH,
        artifact_sha256=text or HASH,
        verdict=row["verify_verdict"],
        reasons=(text or "effect: at least 28.0% fewer errors (needed 2%)",),
        claim=text or "On surface_d5_depol at p = 0.005 this predecoder makes 32% fewer logical errors.",
        backend="mwpm",
        decoder_rate=_rate(effect.counts.errors_candidate),
        effect=effect,
        panel=tuple(
            BaselineResult(
                name=text or name,
                rate=_rate(baseline.counts.errors_reference),
                against=baseline,
                beats=baseline.delta_low > 0,
            )
            for name, baseline in panel
        ),
        points=(
            *(_effect(name, 0.003, errors, 200) for name, errors in (("mwpm", 320), ("mwpm_correlated", 240))),
            *(_effect(name, 0.01, errors, 6900) for name, errors in (("mwpm", 8400), ("mwpm_correlated", 7600))),
        ),
        test=SequentialTest(
            counts=effect.counts,
            e_value=300.0,
            e_value_harm=0.1,
            threshold=40.0,
            alpha_t=0.025,
            attempt_index=1,
            discoveries_before=0,
            stopped_by="evidence",
        ),
        guards=(
            Guard(name=text or "ablation", passed=True, evidence=text or "the gain is lost without the net"),
            Guard(name="canary", passed=good, evidence=text or "no better than chance"),
        ),
        cost=Cost(
            n_params=170_000,
            flops_per_syndrome=341_000,
            claimed_n_params=None,
            claimed_flops_per_syndrome=None,
            counted_by="baseline compiler",
            candidate_us_per_shot=3.0,
            startup_cpu_s=0.1,
            memory_growth_mb=1.0,
            decoding_us_per_shot=4.0 + row["round"],
            correlated_us_per_shot=10.0,
        ),
        composition=_composition(effect, text) if good else None,
        bundle_id="bundle",
        seeds_commitment=HASH,
        sandbox=text or "bubblewrap",
        versions={"stim": "1.16.0"},
        not_tested=(text or "hardware noise",),
        judge_wallclock_s=12.0,
    )


def _composition(effect: PairedEffect, text: str) -> Composition:
    parent = CompositionParent(round=1, artifact_sha256=HASH, effect=effect, against=effect, beaten=True)
    return Composition(
        verdict="synergy",
        evidence=text or "more than the sum",
        bundle_id="both",
        chunk_digests=(),
        effect=effect,
        parents=(parent, parent),
        interaction=1e-3,
        interaction_low=5e-4,
        interaction_high=1.5e-3,
    )


def _info(run_id: str, baseline: str) -> RunInfo:
    return RunInfo(
        run_id=run_id,
        env_name="surface_d5_depol",
        env_yaml_sha256=HASH,
        baseline_sha=baseline,
        baseline_ref="main",
        profile="dev",
        seed=1,
        ideator="tpe",
        code_sha256=HASH,
        package_sha256=HASH,
        secret_sha256=HASH,
        versions={"stim": "1.16.0", "torch": "2.12.0"},
        command_line=("autoqec", "run", "surface_d5_depol"),
    )


def _row(layout: RunLayout, number: int, commits: Sequence[str], only_failures: bool) -> dict[str, Any]:
    fork = "baseline" if number % 7 == 1 else layout.branch(number - 1 - (number % 3 == 0), "try")
    bad = only_failures or failed(number)
    row: dict[str, Any] = {
        "status": "train_error" if bad else "ok",
        "status_reason": "the loss is not finite at step 12" if bad else None,
        "round": number,
        "round_attempt_id": f"attempt-{number}",
        "hypothesis": f"A net of width {number} tells more error patterns apart",
        "verdict": "candidate" if not bad and number % 2 else "ignore",
        "branch": layout.branch(number, "try"),
        "commit_sha": commits[number] if number < len(commits) else "c" * 40,
        "fork_from": fork,
        "fork_from_canonical": canonical_fork(fork),
        "dsl_config": _config(number),
        "ideator_source": f"tpe {number}",
        "checkpoint_path": "checkpoint.pt",
        "train_seed": number,
        "train_shots": 1_000_000,
        "train_wallclock_s": 60.0,
        "analysis": "The interval lies above 0, so the round is nominated.",
        "next_hypothesis_seed": "a wider net",
        "summary_1line": "better",
    }
    if not bad:
        row |= {"ler_plain_classical": 0.014, "ler_predecoder": 0.010, "n_params": 1000 * number}
        row |= {"delta_ler": 1e-3 + 1e-4 * (number % 11), "flops_per_syndrome": 20_000 + 3_000 * (number % 13)}
        row |= {"val_shots": 20_000, "val_errors_plain": 280, "val_errors_predecoder": 200}
        row |= {"val_fixed": 120, "val_broken": 40}
    if not bad and number % 2:
        gain = 1e-3 + 1e-4 * (number % 17)
        row |= {"verify_verdict": "VERIFIED" if verified(number) else "INCONCLUSIVE", "holdout_shots": SHOTS}
        row |= {"delta_vs_baseline_holdout": gain, "delta_holdout_low": gain - 3e-4, "delta_holdout_high": gain + 3e-4}
        row |= {"relative_holdout": gain / 0.014, "relative_holdout_low": (gain - 3e-4) / 0.014}
        row |= {"relative_holdout_high": (gain + 3e-4) / 0.014, "beats_panel": {"mwpm": True, "mwpm_correlated": False}}
        row |= {"judge_flops_per_syndrome": row["flops_per_syndrome"], "judge_n_params": row["n_params"]}
        row |= {"paired_eval_bundle_id": "bundle", "sandbox": "bubblewrap", "verify_reasons": ["effect large enough"]}
    return HistoryRow.model_validate(row).dump()


def _entry(row: dict[str, Any]) -> ParetoEntry:
    keys = ("round_attempt_id", "commit_sha", "branch", "delta_vs_baseline_holdout", "paired_eval_bundle_id")
    keys += ("flops_per_syndrome", "n_params", "fork_from", "fork_from_canonical", "compose_mode")
    return ParetoEntry.model_validate({"verdict": "VERIFIED", **{key: row[key] for key in keys}})


def _leave(layout: RunLayout, row: dict[str, Any]) -> None:
    files = layout.round(row["round"])
    files.dir.mkdir(exist_ok=True)
    files.config.write_text(dump_config(row["dsl_config"]), encoding="utf-8")
    lines = (f"{step}\t{15 * math.exp(-step / 300) + 0.1:.9g}\n" for step in range(1000))
    files.train_log.write_text("".join(lines), encoding="utf-8")
    if row["verify_verdict"]:
        files.report_json.write_text(json.dumps(report_of(row).dump()), encoding="utf-8")


def _config(number: int) -> dict[str, Any]:
    return {"type": "mlp", "output_mode": "soft_priors", "mlp": {"hidden": 32 + number, "depth": 2}, "head": "linear"}


def _branches(root: Path, run_id: str, rounds: int) -> list[str]:
    """Commit a baseline and one branch per round, each with a changed config; return commit ids, baseline first."""
    root.mkdir(exist_ok=True)
    _git(root, "init", "-q", "--initial-branch=main", ".")
    layout, stream = RunLayout(root, run_id), []
    for number in range(rounds + 1):
        ref = "main" if number == 0 else layout.branch(number, "try")
        start = "" if number == 0 else "from :1\n"
        text = dump_config(_config(number))
        stream.append(
            f"commit refs/heads/{ref}\nmark :{number + 1}\n"
            f"committer a user <u@example.org> {1735700000 + number} +0000\n"
            f"data 3\ntry\n{start}M 100644 inline {EDITABLE_CONFIG}\ndata {len(text)}\n{text}\n"
        )
    _git(root, "fast-import", "--quiet", "--export-marks=.git/marks", stdin="".join(stream))
    marks = dict(line.split() for line in (root / ".git/marks").read_text(encoding="utf-8").splitlines())
    return [marks[f":{number + 1}"] for number in range(rounds + 1)]


def _git(root: Path, *argv: str, stdin: str = "") -> None:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *argv], cwd=root, env=env, input=stdin, text=True, check=True, capture_output=True)


def _effect(reference: str, p: float, errors: int, mine: int) -> PairedEffect:
    delta = (errors - mine) / SHOTS
    counts = PairedCounts(
        shots=SHOTS, errors_reference=errors, errors_candidate=mine, fixed=errors - mine + 200, broken=200
    )
    return PairedEffect(
        reference=reference,
        p=p,
        counts=counts,
        delta=delta,
        delta_low=delta - 5e-4,
        delta_high=delta + 5e-4,
        relative=delta * SHOTS / errors,
        relative_low=delta * SHOTS / errors - 0.03,
        relative_high=delta * SHOTS / errors + 0.03,
    )


def _rate(errors: int) -> Rate:
    rate = errors / SHOTS
    return Rate(shots=SHOTS, errors=errors, rate=rate, low=0.95 * rate, high=1.05 * rate, per_round=rate / 5)
